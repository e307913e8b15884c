//! Queue pair 1: the datagrams of the connection manager.

use std::net::IpAddr;

use device_model::net::MacAddr;
use device_model::time::Instant;
use rdma_cm::Peer;
use rdma_cm::wire::{GSI_QKEY, MAD};
use verbs::{
    AddressVector, Completion, Error, Gid, Provider, QpAttr, QpAttrMask, QpCap, QpId, QpState, QpType, Qpn,
    RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, UdAddress, WcOpcode, WcStatus,
};

use super::qp_init;
use crate::arena::{Arena, Buffer};

/// The number of queue pair 1 as an object.
pub(super) const QP: QpId = QpId(0);
/// Datagrams in either direction that are under way at most; more are lost, as datagrams are.
const SLOTS: u32 = 64;
/// Bytes before a received datagram.
const GRH: u32 = 40;
/// Bytes of a slot.
const SLOT: u32 = 512;

/// Queue pair 1 and its buffers.
#[derive(Debug)]
pub(super) struct Gsi {
    lkey: u32,
    receives: Buffer,
    sends: Buffer,
    /// Slots that nothing is sent from.
    free: Vec<u32>,
}

impl Gsi {
    pub(super) fn new(provider: &mut dyn Provider, arena: &mut Arena, lkey: u32) -> Result<Self, Error> {
        let cap = QpCap { max_send_wr: SLOTS, max_recv_wr: SLOTS, max_send_sge: 1, max_recv_sge: 1 };
        provider.create_qp(QP, qp_init(QpType::Gsi, cap))?;
        let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        let attr = QpAttr { qkey: GSI_QKEY, ..QpAttr::default() };
        for (state, mask) in
            [(QpState::Init, init), (QpState::Rtr, QpAttrMask::empty()), (QpState::Rts, QpAttrMask::SQ_PSN)]
        {
            let attr = QpAttr { state, ..attr };
            provider.modify_qp(Instant::ZERO, QP, &attr, mask | QpAttrMask::STATE)?;
        }
        let mut area = || arena.alloc(SLOTS * SLOT).ok_or(Error::Exhausted);
        let gsi = Self { lkey, receives: area()?, sends: area()?, free: (0..SLOTS).collect() };
        (0..SLOTS).try_for_each(|slot| gsi.receive_into(provider, slot))?;
        Ok(gsi)
    }

    fn receive_into(&self, provider: &mut dyn Provider, slot: u32) -> Result<(), Error> {
        let sge = self.sge(self.receives, slot, GRH + MAD as u32);
        provider.post_recv(QP, RecvWr { wr_id: slot.into(), sges: SgeList::from_slice(&[sge]), bad: None })
    }

    fn sge(&self, area: Buffer, slot: u32, length: u32) -> Sge {
        Sge { addr: area.at + u64::from(slot * SLOT), length, lkey: self.lkey }
    }

    /// Sends a datagram, unless too many are under way.
    pub(super) fn send(
        &mut self,
        provider: &mut dyn Provider,
        arena: &Arena,
        to: Peer,
        dmac: MacAddr,
        mad: &[u8; MAD],
    ) {
        let Some(slot) = self.free.pop() else { return };
        let av = AddressVector { dgid: to.gid, dmac, hop_limit: 64, ..AddressVector::default() };
        let to = UdAddress { av, qpn: Qpn::GSI, qkey: GSI_QKEY };
        let wr = SendWr {
            wr_id: slot.into(),
            op: SendOp::UdSend { to, imm: None },
            flags: SendFlags::SIGNALED,
            sges: SgeList::from_slice(&[self.sge(self.sends, slot, MAD as u32)]),
        };
        let sent = arena.write(self.sends, slot * SLOT, mad).is_ok() && provider.post_send(QP, wr).is_ok();
        if !sent {
            self.free.push(slot);
        }
    }

    /// A work request has ended; the datagram that has come, and whence.
    pub(super) fn completed(
        &mut self,
        provider: &mut dyn Provider,
        arena: &Arena,
        completion: &Completion,
    ) -> Option<(Peer, Vec<u8>)> {
        let slot = u32::try_from(completion.wr_id).ok()?;
        if completion.opcode != WcOpcode::Recv {
            self.free.push(slot);
            return None;
        }
        let at = Buffer { at: self.receives.at + u64::from(slot * SLOT), len: GRH + MAD as u32 };
        let bytes = arena.read(at, completion.byte_len);
        if let Err(error) = self.receive_into(provider, slot) {
            tracing::error!(%error, "Queue pair 1 takes no receives");
        }
        let bytes = bytes.ok().filter(|_| completion.status == WcStatus::Success)?;
        let (header, mad) = bytes.split_at_checked(GRH as usize)?;
        Some((sender(header, completion.network_hdr_type)?, mad.to_vec()))
    }
}

/// Who has sent a datagram, by the global route header before it.
fn sender(header: &[u8], network: u8) -> Option<Peer> {
    let v4 = |at: usize| Some(Gid::from(std::net::Ipv4Addr::from(*header.get(at..)?.first_chunk::<4>()?)));
    let v6 = |at: usize| Some(Gid(*header.get(at..)?.first_chunk::<16>()?));
    match network {
        1 => Some(Peer { gid: v4(32)?, own: v4(36)? }),
        _ => Some(Peer { gid: v6(8)?, own: v6(24)? }),
    }
}

/// Of a frame to queue pair 1: who sent it.
pub(super) fn source_of(frame: &[u8]) -> Option<(IpAddr, MacAddr)> {
    let mac = MacAddr(*frame.get(6..)?.first_chunk()?);
    let (address, transport) = match frame.get(12..14)? {
        // Without options, as RoCE has it.
        [0x08, 0x00] => (IpAddr::from(*frame.get(26..)?.first_chunk::<4>()?), 42),
        [0x86, 0xdd] => (IpAddr::from(*frame.get(22..)?.first_chunk::<16>()?), 62),
        _ => return None,
    };
    let qpn = frame.get(transport + 5..transport + 8)?;
    (qpn == [0, 0, 1]).then_some((address, mac))
}
