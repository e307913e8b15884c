//! Message-signalled interrupts, as a device sees them.

/// Raises a function's interrupts by MSI-X vector number.
///
/// Masking, the pending bit array and the message itself are the PCI function's business (`pci::msix`); a device only
/// says which vector has something to report.
pub trait Interrupts: Send + Sync {
    /// Signals `vector`. A vector the guest has masked is latched and fires when unmasked; a vector the function does
    /// not have, or MSI-X being disabled, makes this a no-op.
    fn signal(&self, vector: u16);
}
