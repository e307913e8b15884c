//! One device with its memory.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use device_model::net::MacAddr;
use device_model::ram::{GuestRam, Ram};
use device_model::time::Instant;
use roce::engine::Config;
use roce::provider::{RoceConfig, RoceProvider};
use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqId, CqInit, Gid, GidEntry, Keys, MrId, MrInit, MrKind,
    Owner, PageList, PdId, Provider, ProviderEvent, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType,
    Qpn, SrqId,
};
use vm_memory::GuestAddress;

use super::Connection;
use super::wire::TestLink;

/// Bytes of RAM of a node.
pub const RAM: u64 = 64 << 20;
/// The region that covers most of memory: everything from here on, named by guest-physical address.
pub const HEAP: u64 = 0x10_0000;
/// Address the region's first byte goes by.
pub const HEAP_VA: u64 = 0x7f00_0010_0000;

pub const PD: PdId = PdId(1);
pub const CQ: CqId = CqId(1);

/// One device. It has one protection domain, one completion queue and one region with all rights over [`HEAP`].
pub struct Node {
    pub provider: RoceProvider,
    pub link: Arc<TestLink>,
    pub ram: Arc<Ram>,
    pub mac: MacAddr,
    pub keys: Keys,
    number: u8,
    pub events: Vec<ProviderEvent>,
}

impl Node {
    pub fn new(number: u8) -> Self {
        Self::with(number, 4300, Config::default())
    }

    pub fn with(number: u8, mtu: u16, engine: Config) -> Self {
        Self::with_ram(number, mtu, engine, &[(GuestAddress(0), RAM as usize)])
    }

    /// A node whose RAM is in several regions.
    pub fn with_ram(number: u8, mtu: u16, engine: Config, regions: &[(GuestAddress, usize)]) -> Self {
        let ram = Arc::new(Ram::from_ranges(regions).unwrap());
        let link = Arc::new(TestLink::new(mtu));
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        let config = RoceConfig { mac, engine: Config { secret: u64::from(number), ..engine } };
        let provider = RoceProvider::new(config, ram.clone(), link.clone()).unwrap();
        let keys = Keys { lkey: 0, rkey: 0 };
        let mut node = Self { provider, link, ram, mac, keys, number, events: vec![] };
        node.create_basics();
        node
    }

    fn create_basics(&mut self) {
        self.provider.create_pd(PD, Owner::Kernel).unwrap();
        self.provider.create_cq(CQ, CqInit { owner: Owner::Kernel, depth: 1 << 16 }).unwrap();
        for (index, gid) in (0..).zip(self.gids()) {
            self.provider.set_gid(GidEntry { index, gid }).unwrap();
        }
        self.keys = self.register(1, HEAP_VA, HEAP, RAM - HEAP, Access::all());
    }

    /// Registers pages `gpa..gpa + length` as region `id`.
    pub fn register(&mut self, id: u32, iova: u64, gpa: u64, length: u64, access: Access) -> Keys {
        let first = gpa & !0xfff;
        let pages: Vec<u64> = (first..gpa + length).step_by(4096).collect();
        let kind = MrKind::Pages(PageList::new(12, &pages).unwrap());
        self.provider.register_mr(MrId(id), MrInit { pd: PD, iova, length, access, kind }).unwrap()
    }

    /// An IPv4 and a link-local IPv6 address.
    pub fn gids(&self) -> [Gid; 2] {
        let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, u16::from(self.number));
        [Ipv4Addr::new(10, 0, 0, self.number).into(), v6.into()]
    }

    pub fn qp_init(qp_type: QpType) -> QpInit {
        let cap = QpCap { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 8, max_recv_sge: 8 };
        QpInit {
            qp_type,
            owner: Owner::Kernel,
            pd: PD,
            send_cq: CQ,
            recv_cq: CQ,
            srq: None,
            cap,
            access: Access::empty(),
            qpn: None,
        }
    }

    pub fn create_rc(&mut self, id: QpId) -> Qpn {
        self.provider.create_qp(id, Self::qp_init(QpType::Rc)).unwrap()
    }

    pub fn create_rc_with_srq(&mut self, id: QpId, srq: SrqId) -> Qpn {
        let init = QpInit { srq: Some(srq), ..Self::qp_init(QpType::Rc) };
        self.provider.create_qp(id, init).unwrap()
    }

    /// Brings a connected queue pair from reset to ready-to-send.
    pub fn bring_up(&mut self, now: Instant, id: QpId, peer: Qpn, dgid: Gid, dmac: MacAddr, how: Connection) {
        for (attr, mask) in rc_steps(peer, dgid, dmac, how) {
            self.provider.modify_qp(now, id, &attr, mask).unwrap();
        }
    }

    /// Creates a datagram queue pair that is ready to send.
    pub fn create_ud(&mut self, now: Instant, id: QpId, qp_type: QpType, qkey: u32) -> Qpn {
        let qpn = self.provider.create_qp(id, Self::qp_init(qp_type)).unwrap();
        let attr = QpAttr { qkey, sq_psn: 0xff_fffe, ..QpAttr::default() };
        let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        for (state, mask) in
            [(QpState::Init, init), (QpState::Rtr, QpAttrMask::empty()), (QpState::Rts, QpAttrMask::SQ_PSN)]
        {
            let attr = QpAttr { state, ..attr };
            self.provider.modify_qp(now, id, &attr, mask | QpAttrMask::STATE).unwrap();
        }
        qpn
    }

    /// The way to another node.
    pub fn av(&self, peer: &Self, gid_index: u8) -> AddressVector {
        AddressVector {
            dgid: peer.gids()[usize::from(gid_index)],
            sgid_index: gid_index,
            hop_limit: 64,
            dmac: peer.mac,
            ..AddressVector::default()
        }
    }

    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        (&*self.ram as &dyn GuestRam).write(gpa, bytes).unwrap();
    }

    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        (&*self.ram as &dyn GuestRam).read(gpa, &mut out).unwrap();
        out
    }

    pub fn collect_events(&mut self) {
        while let Some(event) = self.provider.poll_event() {
            self.events.push(event);
        }
    }

    /// Takes the completions so far, in order.
    pub fn completions(&mut self) -> Vec<Completion> {
        self.collect_events();
        let completions = self.events.iter().filter_map(|event| match event {
            ProviderEvent::Completion(completion) => Some(*completion),
            _ => None,
        });
        let completions = completions.collect();
        self.events.retain(|event| !matches!(event, ProviderEvent::Completion(_)));
        completions
    }

    /// Takes the asynchronous events so far, in order.
    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        self.collect_events();
        let events = self.events.iter().filter_map(|event| match event {
            ProviderEvent::Async(event) => Some(*event),
            _ => None,
        });
        let events = events.collect();
        self.events.retain(|event| !matches!(event, ProviderEvent::Async(_)));
        events
    }

    pub fn state(&self, qp: u32) -> QpState {
        self.provider.query_qp(QpId(qp)).unwrap().state
    }
}

/// The three modifications that connect a queue pair.
pub fn rc_steps(peer: Qpn, dgid: Gid, dmac: MacAddr, how: Connection) -> [(QpAttr, QpAttrMask); 3] {
    let attr = QpAttr {
        path_mtu: how.mtu,
        rq_psn: how.psn,
        sq_psn: how.psn,
        dest_qpn: peer,
        access: how.access,
        max_rd_atomic: how.rd_atomic,
        max_dest_rd_atomic: how.rd_atomic,
        min_rnr_timer: how.min_rnr_timer,
        timeout: how.timeout,
        retry_cnt: how.retry_cnt,
        rnr_retry: how.rnr_retry,
        av: AddressVector {
            dgid,
            sgid_index: how.gid_index,
            hop_limit: 64,
            dmac,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    [
        (QpState::Init, QpAttrMask::RC_INIT),
        (QpState::Rtr, QpAttrMask::RC_RTR),
        (QpState::Rts, QpAttrMask::RC_RTS),
    ]
    .map(|(state, mask)| (QpAttr { state, ..attr }, mask))
}
