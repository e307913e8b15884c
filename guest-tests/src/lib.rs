//! Tests that boot something: host and guest halves.
