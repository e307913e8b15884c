//! What a device is made of and how large it is.

use std::fmt;
use std::sync::Arc;

use device_model::doorbell::{Bell, Doorbells};
use device_model::irq::Interrupts;
use device_model::net::MacAddr;
use device_model::ram::GuestRam;
use device_model::time::Instant;
use pvrdma_spec::shared::{AtomicOps, DeviceCaps, GidType, MemoryManagement};
use pvrdma_spec::{PAGE_DIR_MAX_PAGES, PAGE_SIZE, PCI_DEVICE, PCI_VENDOR};
use verbs::{Limits, Provider};
use zerocopy::FromZeros;

use crate::polling::Polling;

/// Receives that the guest's management datagram client posts; a queue must hold them.
const MIN_QP_WR: u32 = 512;
/// Entries the guest's management datagram client asks of its completion queue.
const MIN_CQE: u32 = 1024;
/// Largest number of queue pairs: user space looks them up by 16 bits, and its table must not have length zero.
const MAX_QP: u32 = 0xffff;
/// Largest number of completion and of shared receive queues: the driver allocates tables of that size at once.
const MAX_QUEUES: u32 = 1 << 16;
/// Address vectors hold protection domains in 24 bits.
const MAX_PD: u32 = (1 << 24) - 1;
/// Elements of a list: keeps work requests well inside a page, as the driver's rings need.
const MAX_SGE: u32 = 32;
/// Pages of a fast registration that the driver supports.
const MAX_FAST_REG_PAGES: u32 = 128;
/// Address handles exist in the guest only; a number that nobody reaches.
const MAX_AH: u32 = 1 << 20;
/// Local acknowledge delay, 4.096 µs · 2^15: an I/O thread may be late by a scheduling quantum or two.
const LOCAL_CA_ACK_DELAY: u8 = 15;

/// Sizes and identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address of the paired network interface; GUIDs derive from it.
    pub mac: MacAddr,
    /// Doorbell pages: one more than user contexts, a power of two from 2 to 65 536.
    pub doorbell_pages: u32,
    /// Host bytes that page lists may take together, those of memory regions and of rings. A scattered page takes four,
    /// and regions may overlap, so without a bound a small guest could take any amount.
    pub page_list_budget: usize,
    /// Whether the link is up at first.
    pub link_up: bool,
    /// Which processes are polled, where [`crate::Pvrdma::allow_polling`] allows it.
    pub polling: Polling,
}

impl Config {
    /// The usual sizes: 1023 user contexts and page lists for 128 GiB of scattered registrations.
    pub const fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            doorbell_pages: 1024,
            page_list_budget: 128 << 20,
            link_up: true,
            polling: Polling::DEFAULT,
        }
    }
}

/// Eventfds the device wakes the I/O thread by.
pub struct Bells {
    /// Rung by register accesses that left work. The I/O thread answers with [`crate::Pvrdma::service`].
    pub work: Arc<dyn Bell>,
    /// Rung by guests that posted work requests, each for the objects that share it, 1 to 64. The I/O thread answers with
    /// [`crate::Pvrdma::rang`] and [`crate::Pvrdma::service`].
    pub groups: Vec<Arc<dyn Bell>>,
    /// Rung by guests that found a completion queue empty. Nobody needs to listen.
    pub unread: Arc<dyn Bell>,
}

/// What the virtual machine monitor gives a device.
pub struct Parts {
    /// Does the RDMA.
    pub provider: Box<dyn Provider>,
    /// Guest memory.
    pub ram: Arc<dyn GuestRam>,
    /// Interrupts of the function.
    pub interrupts: Arc<dyn Interrupts>,
    /// Doorbells of the function.
    pub doorbells: Arc<dyn Doorbells>,
    /// Wakes the I/O thread.
    pub bells: Bells,
    /// The clock that [`crate::Pvrdma::service`] is called by.
    pub clock: Box<dyn Fn() -> Instant + Send + Sync>,
    /// Whether the guest has the paired network interface up. While it has not, the port is down and packets are lost; the
    /// driver sees for itself when that changes. Called with the device locked.
    pub interface_up: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("limits", &self.provider.limits()).finish_non_exhaustive()
    }
}

/// A device that the guest driver would not work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Number of doorbell pages.
    #[error("{0} doorbell pages: choose a power of two from 2 to 65536")]
    DoorbellPages(u32),
    /// Number of group bells.
    #[error("{0} group bells: give 1 to 64")]
    GroupBells(usize),
    /// A limit of the provider below what the guest's own management client needs.
    #[error("The provider supports {have} {what}, but the guest driver needs {need}")]
    Limit {
        /// Which.
        what: &'static str,
        /// The provider's.
        have: u32,
        /// The least.
        need: u32,
    },
}

/// Largest power of two of at most `value`.
const fn floor_power_of_two(value: u32) -> u32 {
    if value == 0 { 0 } else { 1 << value.ilog2() }
}

/// Checks that the device can be driven, and fills in what it reports to the driver. Rounded down to powers of two where
/// the driver rounds up.
pub(crate) fn capabilities(config: &Config, limits: &Limits) -> Result<DeviceCaps, ConfigError> {
    if !config.doorbell_pages.is_power_of_two() || !(2..=1 << 16).contains(&config.doorbell_pages) {
        return Err(ConfigError::DoorbellPages(config.doorbell_pages));
    }
    let guid = config.mac.eui64();
    let mut caps = DeviceCaps::new_zeroed();
    caps.fw_ver = firmware_version();
    caps.node_guid = guid;
    caps.sys_image_guid = guid;
    caps.max_mr_size = limits.max_mr_size.min(u64::from(PAGE_DIR_MAX_PAGES) * PAGE_SIZE);
    caps.page_size_cap = PAGE_SIZE;
    caps.vendor_id = u32::from(PCI_VENDOR);
    caps.vendor_part_id = u32::from(PCI_DEVICE);
    caps.hw_ver = 1;
    caps.max_qp = limits.max_qp.min(MAX_QP);
    caps.max_qp_wr = floor_power_of_two(limits.max_qp_wr);
    caps.max_sge = floor_power_of_two(limits.max_sge.min(MAX_SGE));
    caps.max_sge_rd = caps.max_sge;
    caps.max_cq = limits.max_cq.min(MAX_QUEUES);
    caps.max_cqe = floor_power_of_two(limits.max_cqe);
    caps.max_mr = limits.max_mr;
    caps.max_pd = limits.max_pd.min(MAX_PD);
    caps.max_qp_rd_atom = u32::from(limits.max_dest_rd_atomic);
    caps.max_qp_init_rd_atom = u32::from(limits.max_rd_atomic);
    caps.max_res_rd_atom = caps.max_qp.saturating_mul(caps.max_qp_rd_atom);
    caps.max_ah = MAX_AH;
    caps.max_srq = limits.max_srq.min(MAX_QUEUES);
    caps.max_srq_wr = floor_power_of_two(limits.max_srq_wr);
    caps.max_srq_sge = floor_power_of_two(limits.max_srq_sge.min(MAX_SGE));
    caps.max_uar = config.doorbell_pages;
    caps.gid_tbl_len = u32::from(limits.gid_table_len.min(256));
    caps.max_pkeys = 1;
    caps.local_ca_ack_delay = LOCAL_CA_ACK_DELAY;
    caps.phys_port_cnt = 1;
    caps.atomic_ops = (AtomicOps::COMP_SWAP | AtomicOps::FETCH_ADD).bits();
    caps.bmme_flags = MemoryManagement::all().bits();
    caps.gid_types = GidType::ROCE_V2.bits();
    caps.max_fast_reg_page_list_len = limits.max_fast_reg_pages.min(MAX_FAST_REG_PAGES);
    check_minimum(&caps)?;
    Ok(caps)
}

fn check_minimum(caps: &DeviceCaps) -> Result<(), ConfigError> {
    let needs = [
        ("queue pairs", caps.max_qp, 2),
        ("work requests a queue", caps.max_qp_wr, MIN_QP_WR),
        ("scatter/gather elements", caps.max_sge, 2),
        ("completion queues", caps.max_cq, 1),
        ("entries a completion queue", caps.max_cqe, MIN_CQE),
        ("memory regions", caps.max_mr, 1),
        ("protection domains", caps.max_pd, 1),
        ("GIDs", caps.gid_tbl_len, 1),
    ];
    match needs.into_iter().find(|(_, have, need)| have < need) {
        Some((what, have, need)) => Err(ConfigError::Limit { what, have, need }),
        None => Ok(()),
    }
}

/// The crate's version in the driver's format.
fn firmware_version() -> u64 {
    let part = |text: &str| text.parse::<u64>().unwrap_or(0) & 0xffff;
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 32
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 16
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

#[cfg(test)]
mod tests {
    use verbs::Mtu;

    use super::*;

    const LIMITS: Limits = Limits {
        max_qp: 70_000,
        max_qp_wr: 20_000,
        max_sge: 30,
        max_cq: 1 << 25,
        max_cqe: 70_000,
        max_mr: 1000,
        max_mr_size: u64::MAX,
        max_pd: 1 << 25,
        max_srq: 10,
        max_srq_wr: 1000,
        max_srq_sge: 100,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        gid_table_len: 1000,
        max_fast_reg_pages: 512,
        max_msg_size: 1 << 30,
        active_mtu: Mtu::B1024,
    };

    #[test]
    fn advertised_numbers_stay_inside_what_driver_and_provider_can_do() {
        let caps = capabilities(&Config::new(MacAddr([0x52, 0x54, 0, 1, 2, 3])), &LIMITS).unwrap();
        assert_eq!((caps.max_qp, caps.max_qp_wr, caps.max_sge, caps.max_cqe), (0xffff, 16384, 16, 65536));
        assert_eq!((caps.max_cq, caps.max_pd, caps.gid_tbl_len), (1 << 16, (1 << 24) - 1, 256));
        assert_eq!((caps.max_mr_size, caps.max_fast_reg_page_list_len), (1 << 30, 128));
        assert_eq!(caps.node_guid, [0x50, 0x54, 0, 0xff, 0xfe, 1, 2, 3]);
        assert_eq!((caps.gid_types, caps.atomic_ops, caps.bmme_flags, caps.mode), (2, 3, 7, 0));
    }

    #[test]
    fn provider_too_small_for_the_guest_driver_is_refused_by_name() {
        let limits = Limits { max_qp_wr: 500, ..LIMITS };
        let error = capabilities(&Config::new(MacAddr([0; 6])), &limits).unwrap_err();
        assert_eq!(
            error.to_string(),
            "The provider supports 256 work requests a queue, but the guest driver needs 512"
        );
    }

    #[test]
    fn doorbell_pages_must_be_a_power_of_two() {
        let config = Config { doorbell_pages: 1000, ..Config::new(MacAddr([0; 6])) };
        assert_eq!(capabilities(&config, &LIMITS), Err(ConfigError::DoorbellPages(1000)));
    }
}
