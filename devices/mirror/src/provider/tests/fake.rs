//! A host device that does what the test says.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use verbs::{
    AddressVector, Gid, Keys, Limits, MrInit, PageList, QpAttr, QpAttrMask, QpState, Qpn, Sge, SrqAttr,
    WcStatus,
};

use crate::device::{Device, HostCompletion, HostEvent, HostSend, QpParts};
use crate::gids::{Addresses, Holder};

/// What is on the host.
#[derive(Default)]
pub struct State {
    /// Objects of each kind that are alive.
    pub alive: BTreeMap<&'static str, i32>,
    /// Posted requests: name, and whether they were posted to fail.
    pub posted: VecDeque<(u64, bool)>,
    /// Completions of the one queue there is in tests.
    pub completions: VecDeque<HostCompletion>,
    /// Events that wait.
    pub events: VecDeque<HostEvent>,
    /// Times a completion queue was armed.
    pub arms: u32,
    /// A completion that comes just when the queue is armed.
    pub at_arming: Option<HostCompletion>,
    /// Numbers of queue pairs to come.
    pub qpns: VecDeque<u32>,
    /// State and row of the last modification.
    pub modified: Vec<(QpState, u8)>,
    /// What a query finds, unless it is what nobody else says.
    pub qp_state: Option<QpState>,
    /// Whether requests are flushed by a move to the error state, and by nothing else: the way of `rdma_rxe`.
    pub flushes_when_moved: bool,
    /// errno of the next post.
    pub refuse: Option<i32>,
    /// Addresses on the interface.
    pub addresses: Vec<IpAddr>,
    /// Address handles made so far.
    pub handles: u32,
    /// Whether the network knows any receiver.
    pub unreachable: bool,
}

#[derive(Clone, Default)]
pub struct Host(Arc<Mutex<State>>);

impl Host {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn make(&self, kind: &'static str) -> Object {
        *self.state().alive.entry(kind).or_default() += 1;
        Object(self.clone(), kind)
    }

    /// Completes the oldest request that was posted.
    pub fn finish(&self, status: WcStatus) -> HostCompletion {
        let (wr_id, _) = self.state().posted.pop_front().unwrap();
        self.finish_named(wr_id, status)
    }

    pub fn finish_named(&self, wr_id: u64, status: WcStatus) -> HostCompletion {
        let completion = completion(wr_id, status);
        let mut state = self.state();
        state.completions.push_back(completion);
        state.events.push_back(HostEvent::Completion(0));
        completion
    }
}

pub fn completion(wr_id: u64, status: WcStatus) -> HostCompletion {
    HostCompletion {
        wr_id,
        status,
        qpn: Qpn(17),
        byte_len: 5,
        imm: None,
        by_write: false,
        src_qp: Qpn(0),
        grh: false,
    }
}

pub struct Object(Host, &'static str);

impl Drop for Object {
    fn drop(&mut self) {
        *self.0.state().alive.entry(self.1).or_default() -= 1;
    }
}

fn fails(sges: &[Sge]) -> bool {
    sges.iter().any(|sge| sge.lkey == u32::MAX)
}

impl Device for Host {
    type Pd = Object;
    type Mr = Object;
    type Cq = Object;
    type Srq = Object;
    type Qp = Object;
    type Ah = Object;

    fn limits(&self) -> Limits {
        Limits { max_qp: 7, max_cqe: 1 << 20, ..pvrdma::test_utils::FakeProvider::LIMITS }
    }

    fn create_pd(&mut self) -> io::Result<Object> {
        Ok(self.make("pd"))
    }

    fn register_mr(&mut self, _: &Object, init: &MrInit, _: &PageList) -> io::Result<(Object, Keys)> {
        Ok((self.make("mr"), Keys { lkey: init.length as u32, rkey: 9 }))
    }

    fn create_cq(&mut self, _: u32, _: u32) -> io::Result<Object> {
        Ok(self.make("cq"))
    }

    fn create_srq(&mut self, _: &Object, _: SrqAttr, _: u32) -> io::Result<Object> {
        Ok(self.make("srq"))
    }

    fn set_srq_limit(&mut self, _: &Object, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn srq_limit(&self, _: &Object) -> io::Result<u32> {
        Ok(3)
    }

    fn create_qp(&mut self, _: &QpParts<'_, Self>, _: u32) -> io::Result<(Object, Qpn)> {
        let qpn = self.state().qpns.pop_front().unwrap_or(17);
        Ok((self.make("qp"), Qpn(qpn)))
    }

    fn modify_qp(&mut self, _: &Object, attr: &QpAttr, _: QpAttrMask, row: u8) -> io::Result<()> {
        self.state().modified.push((attr.state, row));
        let moved = self.state().flushes_when_moved && attr.state == QpState::Err;
        while moved && !self.state().posted.is_empty() {
            self.finish(WcStatus::WrFlushErr);
        }
        Ok(())
    }

    fn query_qp(&self, _: &Object) -> io::Result<QpAttr> {
        Ok(QpAttr { state: self.state().qp_state.unwrap_or(QpState::Sqe), ..QpAttr::default() })
    }

    fn create_ah(&mut self, _: &Object, av: &AddressVector, _: u8) -> io::Result<Object> {
        if self.state().unreachable && Some((av.dgid, av.sgid_index)) != self.own_gid() {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        self.state().handles += 1;
        Ok(self.make("ah"))
    }

    fn post_send(&mut self, _: &Object, wr: &HostSend<'_, Object>) -> io::Result<()> {
        if let Some(errno) = self.state().refuse.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.state().posted.push_back((wr.wr_id, fails(wr.sges)));
        Ok(())
    }

    fn post_recv(&mut self, _: &Object, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        self.state().posted.push_back((wr_id, fails(sges)));
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: &Object, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        self.post_recv(srq, wr_id, sges)
    }

    fn poll_cq(&mut self, _: &Object, out: &mut Vec<HostCompletion>) -> io::Result<()> {
        out.extend(self.state().completions.drain(..));
        Ok(())
    }

    fn arm_cq(&mut self, _: &Object) -> io::Result<()> {
        let mut state = self.state();
        state.arms += 1;
        let late = state.at_arming.take();
        state.completions.extend(late);
        Ok(())
    }

    fn events(&mut self, out: &mut Vec<HostEvent>) -> bool {
        out.extend(self.state().events.drain(..));
        false
    }

    fn gid_index(&self, gid: Gid) -> Option<u8> {
        let address = gid.ipv4().map(IpAddr::V4)?;
        self.state().addresses.iter().position(|have| *have == address).map(|row| row as u8 + 40)
    }

    fn own_gid(&self) -> Option<(Gid, u8)> {
        Some((Gid([1; 16]), 0))
    }
}

impl Addresses for Host {
    fn hold(&mut self, address: IpAddr) -> io::Result<Holder> {
        let mut state = self.state();
        if !state.addresses.contains(&address) {
            state.addresses.push(address);
        }
        Ok(Holder::Us)
    }

    fn release(&mut self, address: IpAddr) -> io::Result<()> {
        self.state().addresses.retain(|have| *have != address);
        Ok(())
    }
}
