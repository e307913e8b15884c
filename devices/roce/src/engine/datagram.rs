//! Unreliable datagrams and the general service interface (IBTA 9.8).

use verbs::{
    Access, Completion, QpState, QpType, Qpn, RecvWr, Segments, SendOp, UdAddress, WcFlags, WcOpcode,
    WcStatus,
};

use super::mr::Denied;
use super::plan::{Effect, Outgoing, Source, Transmit};
use super::qp::Qp;
use super::shared::{Shared, total};
use crate::wire::{Deth, Family, Frame, Packet, Path, Pdu};

/// Bytes before the payload of a received datagram, for a global route header or what stands in for it.
const GRH: u32 = 40;
/// An IPv4 header lies at the end of that area (IBTA annex A17.4.5.2).
const GRH_IPV4_AT: u32 = 20;
/// Keys with this bit stand for the sending queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

/// `enum rdma_network_type` of a RoCE v2 packet.
const fn network_type(family: Family) -> u8 {
    match family {
        Family::V4 => 1,
        Family::V6 => 2,
    }
}

impl Qp {
    /// Sends the oldest datagram. It is complete when it is sent.
    pub(crate) fn send_datagram(&mut self, cx: &mut Shared) -> Transmit {
        if self.state() == QpState::Sqd {
            return Transmit::Idle;
        }
        let Some(wqe) = self.sq.wqes.front() else { return Transmit::Idle };
        let SendOp::UdSend { to, imm } = wqe.wr.op else {
            let status = if let SendOp::Bad(status) = wqe.wr.op { status } else { WcStatus::LocQpOpErr };
            return self.fail_datagram(cx, status);
        };
        match self.datagram(cx, to, imm) {
            Ok(out) => {
                self.req.next = self.req.next.plus(1);
                self.complete_send(cx, WcStatus::Success);
                Transmit::Packet(out)
            }
            Err(status) => self.fail_datagram(cx, status),
        }
    }

    fn datagram(&mut self, cx: &Shared, to: UdAddress, imm: Option<[u8; 4]>) -> Result<Outgoing, WcStatus> {
        let Some(wqe) = self.sq.wqes.front_mut() else { return Err(WcStatus::GeneralErr) };
        let mtu = cx.config.limits.active_mtu.bytes();
        let len = u32::try_from(total(&wqe.wr.sges)).ok().filter(|len| *len <= mtu);
        let len = len.ok_or(WcStatus::LocLenErr)?;
        wqe.set_len(len);
        let mut segments = Segments::new();
        cx.resolve_sges(self.init.pd, &wqe.wr.sges, 0, len, Access::empty(), &mut segments)
            .map_err(|_| WcStatus::LocProtErr)?;
        let src = cx.gids.get(to.av.sgid_index).ok_or(WcStatus::LocQpOpErr)?;
        if to.av.dgid.is_zero() || src.ipv4().is_some() != to.av.dgid.ipv4().is_some() {
            return Err(WcStatus::LocQpOpErr);
        }
        let qkey = if to.qkey & OWN_QKEY == 0 { to.qkey } else { self.attr.qkey };
        let deth = Deth { qkey, src: self.qpn };
        let dest = Qpn(to.qpn.0 & Qpn::MASK);
        let mut packet = Packet::new(dest, self.req.next, Pdu::Datagram { deth, imm });
        packet.solicited = wqe.wr.flags.contains(verbs::SendFlags::SOLICITED);
        Ok(Outgoing { qp: self.id, path: Path::new(src, &to.av, self.qpn, dest), packet, segments, len })
    }

    /// A datagram cannot be sent: the send queue stops, the receive queue does not.
    fn fail_datagram(&mut self, cx: &mut Shared, status: WcStatus) -> Transmit {
        self.attr.state = QpState::Sqe;
        self.complete_send(cx, status);
        self.flush_send(cx);
        Transmit::Again
    }

    /// Takes a datagram. What does not suit is dropped without a trace on the wire or in the queue: anybody can send one.
    pub(crate) fn on_datagram(&mut self, cx: &mut Shared, frame: &Frame, deth: Deth, imm: Option<[u8; 4]>) {
        let counter = match self.accept_datagram(cx, frame, deth, imm) {
            Ok(()) => return,
            Err(Drop::Qkey) => &mut cx.counters.dropped_qkey,
            Err(Drop::NoReceive) => &mut cx.counters.dropped_no_receive,
            Err(Drop::TooLong) => &mut cx.counters.dropped_too_long,
        };
        *counter += 1;
    }

    fn accept_datagram(
        &mut self,
        cx: &mut Shared,
        frame: &Frame,
        deth: Deth,
        imm: Option<[u8; 4]>,
    ) -> Result<(), Drop> {
        if deth.qkey != self.attr.qkey {
            return Err(Drop::Qkey);
        }
        let waiting = match self.init.srq {
            Some(srq) => cx.srqs.get(srq.0).and_then(|srq| srq.waiting.front()),
            None => self.rq.front(),
        };
        let payload = u32::try_from(frame.payload.len()).map_err(|_| Drop::TooLong)?;
        let len = payload + GRH;
        let room = waiting.ok_or(Drop::NoReceive)?;
        if room.bad.is_none() && total(&room.sges) < u64::from(len) {
            return Err(Drop::TooLong);
        }
        let wr = self.take_recv(cx).ok_or(Drop::NoReceive)?;
        let completion = self.completion(self.init.recv_cq, wr.wr_id, WcOpcode::Recv, WcStatus::Success);
        let placed = match wr.bad {
            Some(status) => Err(status),
            None => self.place_datagram(cx, frame, &wr, payload).map_err(|_| WcStatus::LocProtErr),
        };
        if let Err(status) = placed {
            self.complete_recv(cx, Completion { status, solicited: true, ..completion });
            self.fail(cx);
            return Ok(());
        }
        let network_hdr = WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE;
        let flags = if imm.is_some() { network_hdr | WcFlags::WITH_IMM } else { network_hdr };
        let completion = Completion {
            byte_len: len,
            imm_or_key: imm.unwrap_or_default(),
            src_qp: deth.src,
            flags,
            network_hdr_type: network_type(frame.grh.family),
            solicited: frame.packet.solicited,
            ..completion
        };
        self.complete_recv(cx, completion);
        Ok(())
    }

    fn place_datagram(
        &self,
        cx: &mut Shared,
        frame: &Frame,
        wr: &RecvWr,
        payload: u32,
    ) -> Result<(), Denied> {
        let header_at = match frame.grh.family {
            Family::V4 => GRH_IPV4_AT,
            Family::V6 => 0,
        };
        let parts =
            [(header_at, GRH - header_at, frame.grh.header.clone()), (GRH, payload, frame.payload.clone())];
        let mut effects = [None, None];
        for (effect, (offset, len, range)) in effects.iter_mut().zip(parts) {
            let mut to = Segments::new();
            cx.resolve_sges(self.init.pd, &wr.sges, offset, len, Access::LOCAL_WRITE, &mut to)?;
            *effect = Some(Effect::Place { qp: self.id, from: Source::Payload(range), to });
        }
        effects.into_iter().flatten().for_each(|effect| cx.effect(effect));
        Ok(())
    }

    /// Whether it is a datagram queue pair.
    pub(crate) const fn is_datagram(&self) -> bool {
        matches!(self.init.qp_type, QpType::Ud | QpType::Gsi)
    }
}

/// Why a datagram is dropped.
enum Drop {
    Qkey,
    NoReceive,
    TooLong,
}
