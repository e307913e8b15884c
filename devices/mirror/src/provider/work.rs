//! Work requests on their way to the host.

use std::io;
use std::sync::Arc;

use verbs::{
    AddressVector, Error, PdId, QpAttr, QpAttrMask, QpId, QpState, QpType, Qpn, RecvWr, SendFlags, SendOp,
    SendWr, Sge, SrqId, UdAddress, WcStatus,
};

use super::objects::{Recv, Send, is_mirrored};
use super::{GONE, MirrorProvider, host_error};
use crate::device::{Device, HostSend};

/// Memory that no key gives access to. Posted in the place of a request that must fail: it does so when its turn comes, and
/// takes the queue pair with it, as the request would have.
const NOWHERE: Sge = Sge { addr: 0, length: 1, lkey: u32::MAX };
/// A queue pair that does not exist: the largest number but that of multicast.
const NOBODY: Qpn = Qpn(Qpn::MASK - 1);

/// What is posted for a send request.
enum Twin<A> {
    /// The request itself.
    Same(Option<Arc<A>>),
    /// A datagram that gets lost, for the network does not know its receiver.
    Lost(Arc<A>),
    /// Something that fails in its place.
    Fails(WcStatus, Option<Arc<A>>),
}

impl<D: Device> MirrorProvider<D> {
    pub(super) fn post_host_send(&mut self, qp: QpId, wr: &SendWr) -> Result<(), Error> {
        let twin = self.twins.qps.get(&qp).ok_or(Error::NotFound)?;
        if matches!(twin.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::Transition);
        }
        if twin.send.is_full() {
            return Err(Error::Exhausted);
        }
        let kind = (twin.init.pd, twin.init.qp_type);
        if self.device.is_none() {
            self.keep_send(qp, wr, None, None);
            self.flush(qp);
            return Ok(());
        }
        let plan = self.plan(kind, &wr.op);
        match self.post_twin(qp, wr, &plan) {
            Ok(()) => self.keep(qp, wr, plan),
            Err(error) if error.raw_os_error() == Some(NO_ROOM) => return Err(Error::Exhausted),
            Err(_) => {
                // The host refuses to take what it would have to fail.
                let plan = Twin::Fails(WcStatus::LocQpOpErr, self.own_address(kind));
                self.post_twin(qp, wr, &plan).map_err(host_error)?;
                self.keep(qp, wr, plan);
            }
        }
        self.counters.sends += 1;
        Ok(())
    }

    fn plan(&mut self, kind: (PdId, QpType), op: &SendOp) -> Twin<D::Ah> {
        match op {
            SendOp::Bad(status) => Twin::Fails(*status, self.own_address(kind)),
            op if !is_mirrored(op) => Twin::Fails(WcStatus::LocQpOpErr, self.own_address(kind)),
            SendOp::UdSend { to, .. } => match self.address(kind.0, &to.av) {
                Some(ah) => Twin::Same(Some(ah)),
                None => match self.own_address(kind) {
                    Some(ah) => Twin::Lost(ah),
                    None => Twin::Fails(WcStatus::LocQpOpErr, None),
                },
            },
            _ => Twin::Same(None),
        }
    }

    fn post_twin(&mut self, qp: QpId, wr: &SendWr, plan: &Twin<D::Ah>) -> io::Result<()> {
        let Some(twin) = self.twins.qps.get(&qp) else { return Ok(()) };
        let (Some(device), Some(target)) = (&mut self.device, &twin.host) else { return Ok(()) };
        let nobody = UdAddress { av: AddressVector::default(), qpn: NOBODY, qkey: 0 };
        let is_datagram = twin.init.qp_type == QpType::Ud;
        let stand_in = || {
            if is_datagram { SendOp::UdSend { to: nobody, imm: None } } else { SendOp::Send { imm: None } }
        };
        let replaced;
        let (op, sges, ah) = match plan {
            Twin::Same(ah) => (&wr.op, &wr.sges[..], ah.as_deref()),
            Twin::Lost(ah) => {
                replaced = stand_in();
                (&replaced, &wr.sges[..], Some(&**ah))
            }
            Twin::Fails(_, ah) => {
                replaced = stand_in();
                (&replaced, &[NOWHERE][..], ah.as_deref())
            }
        };
        let host = HostSend { wr_id: twin.send.next_name(), op, flags: wr.flags, sges, ah };
        device.post_send(target, &host)
    }

    fn keep(&mut self, qp: QpId, wr: &SendWr, plan: Twin<D::Ah>) {
        match plan {
            Twin::Same(ah) => self.keep_send(qp, wr, None, ah),
            Twin::Lost(ah) => self.keep_send(qp, wr, None, Some(ah)),
            Twin::Fails(status, ah) => self.keep_send(qp, wr, Some(status), ah),
        }
    }

    fn keep_send(&mut self, qp: QpId, wr: &SendWr, fails: Option<WcStatus>, ah: Option<Arc<D::Ah>>) {
        if let Some(twin) = self.twins.qps.get_mut(&qp) {
            twin.send.push(Send {
                wr_id: wr.wr_id,
                opcode: wr.op.opcode().into(),
                signaled: wr.flags.contains(SendFlags::SIGNALED),
                fails,
                _ah: ah,
            });
        }
    }

    /// The address handle of a path that starts at a row of the guest's GID table.
    fn address(&mut self, pd: PdId, av: &AddressVector) -> Option<Arc<D::Ah>> {
        let Self { addresses, gids, device, twins, now, .. } = self;
        let device = device.as_mut()?;
        addresses.get(*now, pd, av, || {
            let row = device.gid_index(gids.on_host(av.sgid_index.into())?)?;
            device.create_ah(twins.pd(pd).ok()?, av, row).ok()
        })
    }

    /// An address handle to the device itself, for datagrams that get nowhere.
    fn own_address(&mut self, (pd, qp_type): (PdId, QpType)) -> Option<Arc<D::Ah>> {
        if qp_type != QpType::Ud {
            return None;
        }
        let Self { addresses, device, twins, now, .. } = self;
        let device = device.as_mut()?;
        let (dgid, row) = device.own_gid()?;
        let av = AddressVector { dgid, sgid_index: row, hop_limit: 1, ..AddressVector::default() };
        let domain = twins.pd(pd).ok()?;
        addresses.get(*now, pd, &av, || device.create_ah(domain, &av, row).ok())
    }

    pub(super) fn post_host_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), Error> {
        let twin = self.twins.qps.get_mut(&qp).ok_or(Error::NotFound)?;
        if twin.state == QpState::Reset {
            return Err(Error::Transition);
        }
        if twin.recv.is_full() {
            return Err(Error::Exhausted);
        }
        let recv = Recv { wr_id: wr.wr_id, fails: wr.bad };
        let (Some(device), Some(host)) = (&mut self.device, &twin.host) else {
            twin.recv.push(recv);
            self.flush(qp);
            return Ok(());
        };
        device.post_recv(host, twin.recv.next_name(), scatter(wr)).map_err(host_error)?;
        if twin.suspect {
            flush_late(device, host);
        }
        twin.recv.push(recv);
        self.counters.receives += 1;
        Ok(())
    }

    pub(super) fn post_host_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), Error> {
        let twin = self.twins.srqs.get_mut(&srq).ok_or(Error::NotFound)?;
        if twin.queue.is_full() {
            return Err(Error::Exhausted);
        }
        let (Some(device), Some(host)) = (&mut self.device, &twin.host) else { return Err(GONE) };
        device.post_srq_recv(host, twin.queue.next_name(), scatter(wr)).map_err(host_error)?;
        twin.queue.push(Recv { wr_id: wr.wr_id, fails: wr.bad });
        self.counters.receives += 1;
        Ok(())
    }
}

/// Sees to it that a receive which came too late for the error state is flushed all the same.
///
/// A device in software (`rdma_rxe`) finds what its user puts in a receive queue only when it looks there for a message. It
/// looks as well whenever a queue pair is moved to the error state, where hardware does not mind being moved to again.
pub(super) fn flush_late<D: Device>(device: &mut D, qp: &D::Qp) {
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let flushed = device.query_qp(qp).and_then(|attr| match attr.state {
        QpState::Err => device.modify_qp(qp, &error, QpAttrMask::STATE, 0),
        _ => Ok(()),
    });
    if let Err(error) = flushed {
        device_model::guest_warn!(%error, "The host did not flush a late receive");
    }
}

/// `ENOMEM`: the host's queue is full.
const NO_ROOM: i32 = 12;

fn scatter(wr: &RecvWr) -> &[Sge] {
    if wr.bad.is_some() { &[NOWHERE] } else { &wr.sges }
}
