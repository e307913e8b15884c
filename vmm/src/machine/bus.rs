//! Where port and memory accesses of the guest go.

use std::ops::Range;
use std::sync::Arc;

use pci::{CONFIG_ADDRESS, Root};

use super::layout::ECAM;

/// Ports of the PCI configuration mechanism.
const CONFIG_PORTS: Range<u16> = CONFIG_ADDRESS..CONFIG_ADDRESS + 8;

/// A device behind I/O ports. Accesses come from several vCPU threads at once.
pub trait PortDevice: Send + Sync {
    /// Serves a read at `offset` ports from the device's first one; `data` holds ones on entry.
    fn read(&self, offset: u16, data: &mut [u8]);

    /// Serves a write. String instructions arrive as one write of several bytes.
    fn write(&self, offset: u16, data: &[u8]);
}

struct PortRange {
    ports: Range<u16>,
    device: Arc<dyn PortDevice>,
}

/// All that vCPUs reach outside RAM.
pub struct Bus {
    ports: Vec<PortRange>,
    pci: Arc<Root>,
}

impl Bus {
    /// A bus with a PCI root and nothing else.
    pub fn new(pci: Arc<Root>) -> Self {
        Self { ports: Vec::new(), pci }
    }

    /// Puts `device` at `count` ports from `first` on. Ranges must not overlap; the first one added wins.
    pub fn add_ports(&mut self, first: u16, count: u16, device: Arc<dyn PortDevice>) {
        self.ports.push(PortRange { ports: first..first.saturating_add(count), device });
    }

    /// The PCI root.
    pub fn pci(&self) -> &Arc<Root> {
        &self.pci
    }

    /// Serves IN. Ports without a device read as ones.
    pub fn port_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match self.find(port) {
            Some(range) => range.device.read(port - range.ports.start, data),
            None if CONFIG_PORTS.contains(&port) => self.pci.port_read(port, data),
            None => {}
        }
    }

    /// Serves OUT. Ports without a device swallow it.
    pub fn port_write(&self, port: u16, data: &[u8]) {
        match self.find(port) {
            Some(range) => range.device.write(port - range.ports.start, data),
            None if CONFIG_PORTS.contains(&port) => self.pci.port_write(port, data),
            None => {}
        }
    }

    /// Serves a memory read outside RAM; ones where nothing is.
    pub fn memory_read(&self, address: u64, data: &mut [u8]) {
        match ecam_offset(address) {
            Some(offset) => self.pci.ecam_read(offset, data),
            None => {
                self.pci.memory_read(address, data);
            }
        }
    }

    /// Serves a memory write outside RAM.
    pub fn memory_write(&self, address: u64, data: &[u8]) {
        match ecam_offset(address) {
            Some(offset) => self.pci.ecam_write(offset, data),
            None => {
                self.pci.memory_write(address, data);
            }
        }
    }

    fn find(&self, port: u16) -> Option<&PortRange> {
        self.ports.iter().find(|range| range.ports.contains(&port))
    }
}

fn ecam_offset(address: u64) -> Option<u64> {
    address.checked_sub(ECAM.base).filter(|offset| *offset < ECAM.size)
}
