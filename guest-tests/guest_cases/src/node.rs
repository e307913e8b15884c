//! A process on the device: memory, a completion queue, and queue pairs that are connected to siblings or elsewhere.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use pvrdma_driver::{Buffer, Context, Cq, Driver, Error, Mr, Pd, Qp, QpSizes};
use pvrdma_spec::attr::{AhAttr, QpAttr};
use pvrdma_spec::queue::{Cqe, Sge};
use zerocopy::FromZeros;

use crate::Machine;

/// Virtual address of the memory; its own pages are elsewhere.
pub const VA: u64 = 0x7f00_1234_5000;
/// Bytes of the memory.
pub const HEAP: u64 = 1 << 20;
/// Looks at a queue before a case gives up.
const PATIENCE: u32 = 100_000;
/// Reliable connection, of `enum ib_qp_type`.
const RC: u8 = 2;
/// Every access that a peer can have, of `enum ib_access_flags`.
const ALL_ACCESS: u32 = 15;
/// Doorbell page of the process.
const PAGE: u32 = 1;

/// States of `enum ib_qp_state`.
pub mod state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
}

/// Bits of `enum ib_qp_attr_mask`.
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// In words, for [`crate::Outcome`].
pub fn cannot(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("Cannot {what}: {error}")
}

/// A process.
#[derive(Debug)]
pub struct Node<'a, M> {
    pub driver: &'a Driver<M>,
    pub context: Context,
    pub pd: Pd,
    pub cq: Cq,
    pub heap: Buffer,
    pub mr: Mr,
    gid: [u8; 16],
    timeout: u8,
}

impl<'a, M: Machine> Node<'a, M> {
    /// Makes everything but queue pairs, for a case.
    pub fn new(driver: &'a Driver<M>) -> Result<Self, String> {
        Self::with(driver, HEAP, 64, 14)
    }

    /// Makes everything but queue pairs, with `heap` bytes of memory and `completions` entries in the queue, a power of
    /// two. Connections wait 4.096 µs · 2^`timeout` for an answer.
    pub fn with(driver: &'a Driver<M>, heap: u64, completions: u32, timeout: u8) -> Result<Self, String> {
        let gid = link_local(driver.platform().mac());
        driver.bind(0, gid).map_err(cannot("bind an address"))?;
        let context = driver.open(PAGE).map_err(cannot("open a context"))?;
        let pd = driver.create_pd(context).map_err(cannot("create a protection domain"))?;
        let cq = driver.create_cq(context, completions).map_err(cannot("create a completion queue"))?;
        let buffer = Buffer::new(driver.platform(), heap);
        let mr = driver.register(pd, ALL_ACCESS, VA, heap, &buffer.dir).map_err(cannot("register memory"))?;
        Ok(Self { driver, context, pd, cq, heap: buffer, mr, gid, timeout })
    }

    /// Two queue pairs that are connected to each other.
    pub fn pair(&self) -> Result<[Qp; 2], String> {
        let sizes = QpSizes { send_wr: 16, recv_wr: 16, send_sge: 2, recv_sge: 2 };
        let pair = [self.create(sizes)?, self.create(sizes)?];
        let mac = self.driver.platform().mac();
        self.connect(&pair[0], mac, pair[1].qpn)?;
        self.connect(&pair[1], mac, pair[0].qpn)?;
        Ok(pair)
    }

    /// A queue pair for a reliable connection.
    pub fn create(&self, sizes: QpSizes) -> Result<Qp, String> {
        self.create_for(&self.cq, sizes)
    }

    /// The same with a completion queue of its own.
    pub fn create_for(&self, cq: &Cq, sizes: QpSizes) -> Result<Qp, String> {
        self.driver.create_qp(self.pd, RC, (cq, cq), None, sizes).map_err(cannot("create a queue pair"))
    }

    /// Connects `qp` to queue pair `peer` of the device with the Ethernet address `mac`.
    pub fn connect(&self, qp: &Qp, mac: [u8; 6], peer: u32) -> Result<(), String> {
        let modify = |mask, attrs: &QpAttr| {
            self.driver.modify_qp(qp, mask, attrs).map_err(cannot("modify a queue pair"))
        };
        let mut attrs = QpAttr::new_zeroed();
        (attrs.qp_state, attrs.port_num, attrs.qp_access_flags) = (state::INIT, 1, ALL_ACCESS);
        modify(mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT, &attrs)?;
        (attrs.qp_state, attrs.path_mtu, attrs.dest_qp_num) = (state::RTR, 3, peer);
        (attrs.rq_psn, attrs.max_dest_rd_atomic, attrs.min_rnr_timer) = (0xff_fff0, 4, 1);
        attrs.ah_attr = path_to(mac);
        modify(
            mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::RQ_PSN
                | mask::MIN_RNR_TIMER
                | mask::MAX_DEST_RD_ATOMIC
                | mask::DEST_QPN,
            &attrs,
        )?;
        (attrs.qp_state, attrs.sq_psn, attrs.timeout, attrs.retry_cnt) =
            (state::RTS, 0xff_fff0, self.timeout, 7);
        (attrs.rnr_retry, attrs.max_rd_atomic) = (7, 4);
        modify(
            mask::STATE
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC
                | mask::SQ_PSN,
            &attrs,
        )
    }

    /// An element of the memory.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: VA + offset, length, lkey: self.mr.lkey }
    }

    /// Copies into the memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.heap.write(self.driver.platform(), offset, bytes);
    }

    /// Copies out of the memory.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = alloc::vec![0; length];
        self.heap.read(self.driver.platform(), offset, &mut bytes);
        bytes
    }

    /// Loads an aligned word of the memory that the other side writes.
    pub fn load(&self, offset: u64) -> u32 {
        self.driver.platform().load(self.heap.address(offset))
    }

    /// Waits for a number of completions, all of which must be of success.
    pub fn complete(&self, count: usize) -> Result<Vec<Cqe>, String> {
        let mut found = Vec::new();
        for _ in 0..PATIENCE {
            found.extend(core::iter::from_fn(|| self.driver.poll(&self.cq)));
            if let Some(bad) = found.iter().find(|cqe| cqe.status != 0) {
                return Err(format!("Request {} ended with status {}", bad.wr_id, bad.status));
            }
            if found.len() >= count {
                return Ok(found);
            }
            self.driver.platform().settle();
        }
        Err(format!("Only {} of {count} completions came", found.len()))
    }

    /// Destroys everything, the queue pairs first.
    pub fn close(self, pair: [Qp; 2]) -> Result<(), String> {
        let driver = self.driver;
        for qp in pair {
            driver.destroy_qp(qp, &[&self.cq]).map_err(cannot("destroy a queue pair"))?;
        }
        driver.deregister(self.mr).map_err(cannot("deregister memory"))?;
        self.heap.free(driver.platform());
        driver.destroy_cq(self.cq).map_err(cannot("destroy a completion queue"))?;
        driver.destroy_pd(self.pd).map_err(cannot("destroy a protection domain"))?;
        driver.close(self.context).map_err(cannot("close a context"))?;
        driver.unbind(0, self.gid).map_err(cannot("unbind an address"))
    }
}

/// The way to a device on the same link.
fn path_to(mac: [u8; 6]) -> AhAttr {
    let mut path = AhAttr::new_zeroed();
    path.grh.dgid = link_local(mac);
    path.grh.hop_limit = 64;
    (path.ah_flags, path.port_num, path.dmac) = (1, 1, mac);
    path
}

/// The link-local GID of an Ethernet address (RFC 4291, appendix A).
pub const fn link_local([a, b, c, d, e, f]: [u8; 6]) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}
