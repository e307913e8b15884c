//! PCI root, config space, BARs, capabilities and MSI-X.
