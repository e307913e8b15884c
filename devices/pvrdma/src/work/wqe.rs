//! Work requests, parsed from one copy.

use device_model::net::MacAddr;
use device_model::ram::GuestRam;
use pvrdma_spec::queue::{
    AtomicOperands, FastRegOperands, RdmaOperands, RecvWqeHeader, SendWqeHeader, Sge, UdOperands, WrFlags,
    WrOpcode,
};
use verbs::{
    Access, AddressVector, FastReg, Gid, Owner, PageList, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr,
    SgeList, UdAddress, WcStatus,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::ring::{RingError, WorkRing, walk};

/// Bytes of the largest request: header and the most elements the device allows.
const MAX_REQUEST: usize = size_of::<SendWqeHeader>() + 32 * size_of::<Sge>();
/// Elements read with the header: most requests have no more, and every slot has room for one.
const FIRST_ELEMENTS: usize = 1;

/// A copy of a request.
pub(super) struct RequestReader {
    bytes: [u8; MAX_REQUEST],
    header: usize,
    /// Elements, or `None` when there are more of them than the queue has room for.
    elements: Option<usize>,
}

impl RequestReader {
    /// Copies the next request of a ring, whose header is an `H`.
    ///
    /// The header is read once, with the first element, and says how much of the rest there is.
    pub(super) fn read<H: CountElements>(
        ring: &WorkRing,
        ram: &dyn GuestRam,
        max_sge: u32,
    ) -> Result<Self, RingError> {
        let header = size_of::<H>();
        let first = header + FIRST_ELEMENTS * size_of::<Sge>();
        let mut bytes = [0; MAX_REQUEST];
        ring.peek(ram, 0, &mut bytes[..first])?;
        let count = view::<H>(&bytes).count();
        let elements = (count <= max_sge).then_some(count as usize);
        let end = header + elements.unwrap_or(0) * size_of::<Sge>();
        if end > first
            && let Some(rest) = bytes.get_mut(first..end)
        {
            ring.peek(ram, first as u64, rest)?;
        }
        Ok(Self { bytes, header, elements })
    }

    /// Scatter/gather list.
    fn sges(&self) -> Option<SgeList> {
        let end = self.header + self.elements? * size_of::<Sge>();
        let elements =
            <[Sge]>::ref_from_bytes_with_elems(self.bytes.get(self.header..end)?, self.elements?).ok();
        let convert = |sge: &Sge| verbs::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey };
        Some(elements?.iter().map(convert).collect())
    }
}

/// A header that says how many elements follow.
pub(super) trait CountElements: FromBytes + KnownLayout + Immutable {
    fn count(&self) -> u32;
}

impl CountElements for SendWqeHeader {
    fn count(&self) -> u32 {
        self.num_sge
    }
}

impl CountElements for RecvWqeHeader {
    fn count(&self) -> u32 {
        self.num_sge
    }
}

/// The front of `bytes`, which is long enough, as a structure.
fn view<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).map_or_else(|_| T::new_zeroed(), |(value, _)| value)
}

/// What decides how a send request is understood.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendContext {
    pub(super) qp_type: QpType,
    pub(super) owner: Owner,
    pub(super) signal_all: bool,
    pub(super) gid_table_len: u32,
    pub(super) max_fast_reg_pages: u32,
}

/// Parses a receive request.
pub(super) fn parse_recv(reader: &RequestReader) -> RecvWr {
    let wr_id = view::<RecvWqeHeader>(&reader.bytes).wr_id;
    match reader.sges() {
        Some(sges) => RecvWr { wr_id, sges, bad: None },
        None => RecvWr { wr_id, sges: SgeList::new(), bad: Some(WcStatus::LocQpOpErr) },
    }
}

/// Parses a send request. What makes no sense becomes [`SendOp::Bad`] and completes with an error in its turn.
pub(super) fn parse_send(reader: &RequestReader, context: &SendContext, ram: &dyn GuestRam) -> SendWr {
    let header: SendWqeHeader = view(&reader.bytes);
    let mut flags = SendFlags::from_bits_truncate(header.send_flags & !WrFlags::INLINE.bits());
    flags.set(SendFlags::SIGNALED, context.signal_all || flags.contains(SendFlags::SIGNALED));
    let (op, sges) = match reader.sges() {
        Some(sges) => (operation(&header, context, ram).unwrap_or_else(SendOp::Bad), sges),
        None => (SendOp::Bad(WcStatus::LocQpOpErr), SgeList::new()),
    };
    SendWr { wr_id: header.wr_id, op, flags, sges }
}

fn operation(header: &SendWqeHeader, context: &SendContext, ram: &dyn GuestRam) -> Result<SendOp, WcStatus> {
    let opcode = WrOpcode::from_value(header.opcode).ok_or(WcStatus::LocQpOpErr)?;
    if !is_allowed(opcode, context) {
        return Err(WcStatus::LocQpOpErr);
    }
    let rdma: RdmaOperands = view(&header.wr);
    let atomic: AtomicOperands = view(&header.wr);
    let (addr, rkey, key) = (rdma.remote_addr, rdma.rkey, u32::from_le_bytes(header.ex));
    let imm = matches!(opcode, WrOpcode::SendImm | WrOpcode::RdmaWriteImm).then_some(header.ex);
    Ok(match opcode {
        WrOpcode::Send | WrOpcode::SendImm if context.qp_type == QpType::Rc => SendOp::Send { imm },
        WrOpcode::Send | WrOpcode::SendImm => {
            SendOp::UdSend { to: receiver(&view(&header.wr), context)?, imm }
        }
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteImm => SendOp::Write { addr, rkey, imm },
        WrOpcode::RdmaRead => SendOp::Read { addr, rkey },
        WrOpcode::CompareSwap => {
            SendOp::CompareSwap { addr, rkey: atomic.rkey, compare: atomic.compare_add, swap: atomic.swap }
        }
        WrOpcode::FetchAdd => SendOp::FetchAdd { addr, rkey: atomic.rkey, add: atomic.compare_add },
        WrOpcode::SendInv => SendOp::SendInv { rkey: key },
        WrOpcode::LocalInv => SendOp::LocalInv { key },
        WrOpcode::FastReg => SendOp::FastReg(Box::new(fast_reg(&view(&header.wr), context, ram)?)),
    })
}

/// Whether a queue pair may post an opcode. The rings of a process are its own memory: what it writes there must not give
/// it what only the kernel may have, and what its library calls 7 and up means something else here.
const fn is_allowed(opcode: WrOpcode, context: &SendContext) -> bool {
    match (context.qp_type, context.owner) {
        (QpType::Ud | QpType::Gsi, _) => matches!(opcode, WrOpcode::Send | WrOpcode::SendImm),
        (QpType::Rc, Owner::User) => opcode as u32 <= WrOpcode::FetchAdd as u32,
        (QpType::Rc, Owner::Kernel) => true,
    }
}

fn receiver(operands: &UdOperands, context: &SendContext) -> Result<UdAddress, WcStatus> {
    let av = &operands.av;
    let port = av.port_pd >> 24;
    if port != 1 || u32::from(av.gid_index) >= context.gid_table_len || operands.remote_qpn > Qpn::MASK {
        return Err(WcStatus::LocQpOpErr);
    }
    let path = AddressVector {
        dgid: Gid(av.dgid),
        sgid_index: av.gid_index,
        flow_label: av.sl_tclass_flowlabel & 0xf_ffff,
        hop_limit: av.hop_limit,
        traffic_class: (av.sl_tclass_flowlabel >> 20) as u8,
        sl: (av.sl_tclass_flowlabel >> 28) as u8,
        dmac: MacAddr(av.dmac),
    };
    Ok(UdAddress { av: path, qpn: Qpn(operands.remote_qpn), qkey: operands.remote_qkey })
}

/// Copies the page list of a fast registration now, for the guest reuses its page directory for the next one.
fn fast_reg(
    operands: &FastRegOperands,
    context: &SendContext,
    ram: &dyn GuestRam,
) -> Result<FastReg, WcStatus> {
    let bad = WcStatus::MwBindErr;
    let FastRegOperands {
        iova_start,
        pl_pdir_dma,
        page_shift,
        page_list_len,
        length,
        access_flags,
        rkey,
        ..
    } = *operands;
    if page_list_len > context.max_fast_reg_pages || !(12..=30).contains(&page_shift) || length == 0 {
        return Err(bad);
    }
    let size = 1 << page_shift;
    let end = (iova_start & (size - 1)) + u64::from(length);
    if end > u64::from(page_list_len) * size {
        return Err(bad);
    }
    let pages = walk(ram, pl_pdir_dma, page_list_len)
        .and_then(|pages| pages.collect::<Result<Vec<_>, _>>())
        .map_err(|_| bad)?;
    if pages.iter().any(|page| !ram.is_ram(*page, size as usize)) {
        return Err(bad);
    }
    let pages = PageList::new(page_shift as u8, &pages).map_err(|_| bad)?;
    let access = Access::from_bits_truncate(access_flags);
    Ok(FastReg { key: rkey, iova: iova_start, length, access, pages })
}
