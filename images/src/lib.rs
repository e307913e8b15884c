//! Recipes that make kernels, guest systems and the lab host out of Debian packages.
