//! What is particular to RDMA: how many operations a request takes, keys that are gone, peers that send anything.

mod rig;

use std::time::{Duration, Instant};

use bytes::Bytes;
use host_port::{ConnId, Event, HostPort, Queues};
use rig::{Carrier, LIMIT, Rig, port};
use verbs::{RecvWr, SendFlags, SendOp, SendWr, SgeList};
use virtio_fabric::initiator::{Config, Output};
use virtio_fabric::target::FEATURES;
use virtio_fabric::wire::{
    CmFlags, CmRequest, Command, ConnectBody, Extension, Features, NEW_INSTANCE, Request,
};
use virtio_fabric::{Client, OperationCounts};

struct Disc(Client);

impl Disc {
    fn connect(rig: &Rig, config: Config) -> Self {
        let mut disc = Self(Client::new(config, rig.via(), vec![rig.address]).unwrap());
        disc.next(|event| matches!(event, Output::Ready { .. }));
        disc
    }

    fn next(&mut self, wanted: impl Fn(&Output) -> bool) -> Output {
        let start = Instant::now();
        loop {
            match self.0.event() {
                Some(event) if wanted(&event) => return event,
                Some(_) => {}
                None => {
                    assert!(start.elapsed() < LIMIT, "{:?}", self.0.trouble());
                    self.0.wait(Duration::from_secs(1)).unwrap();
                    self.0.run().unwrap();
                }
            }
        }
    }

    fn request(&mut self, kind: u32, sector: u64, data: &[u8], in_length: u32) -> Vec<u8> {
        let mut out = [kind.to_le_bytes(), [0; 4]].concat();
        out.extend_from_slice(&sector.to_le_bytes());
        out.extend_from_slice(data);
        self.0.submit(0, Bytes::from(out), in_length).unwrap();
        self.0.settle();
        let Output::Completed(_, Ok(filled)) = self.next(|event| matches!(event, Output::Completed(..)))
        else {
            panic!("It is completed")
        };
        [filled.data, filled.tail].concat()
    }
}

/// What `after` has and `before` had not.
fn difference(after: OperationCounts, before: OperationCounts) -> [u64; 6] {
    let all = |c: OperationCounts| [c.sends, c.writes, c.immediates, c.reads, c.keys, c.received];
    let (after, before) = (all(after), all(before));
    std::array::from_fn(|n| after[n] - before[n])
}

/// A 4 KiB write is two messages and no key, a 4 KiB read two operations and one key, a long write one key more; without
/// immediate data a read is three operations.
#[test]
fn requests_take_as_few_operations_as_promised() {
    const N: u64 = 20;
    for (features, read) in [
        (FEATURES, [[N, 0, 0, 0, N, N], [0, 0, N, 0, 0, N]]),
        (FEATURES.difference(Features::IMM_COMP), [[N, 0, 0, 0, N, N], [N, N, 0, 0, 0, N]]),
    ] {
        let rig = Rig::over(Carrier::Rdma, features);
        let config = Config { keepalive: Duration::ZERO, ..rig.config("disk0") };
        let mut disc = Disc::connect(&rig, config);
        let mut count = |kind: u32, data: &[u8], in_length: u32| {
            let before = [disc.0.counts().unwrap(), rig.counts()];
            for n in 0..N {
                let bytes = disc.request(kind, n * 8, data, in_length);
                assert_eq!((bytes.len() as u32, *bytes.last().unwrap()), (in_length, 0));
            }
            let after = [disc.0.counts().unwrap(), rig.counts()];
            [0, 1].map(|side| difference(after[side], before[side]))
        };
        // Sends, writes, immediate writes, reads, keys, messages received; of the initiator and of the target.
        assert_eq!(count(1, &[7; 4096], 1), [[N, 0, 0, 0, 0, N], [N, 0, 0, 0, 0, N]]);
        assert_eq!(count(0, &[], 4097), read);
        assert_eq!(count(1, &[7; 65536], 1), [[N, 0, 0, 0, N, N], [N, 0, 0, N, 0, N]]);
    }
}

/// A peer that knows the connection manager, and that a target will hear anything from.
struct Stranger {
    port: HostPort,
    conn: ConnId,
}

impl Stranger {
    fn connect(rig: &Rig, n: u8, vq: u16, size: u16) -> Option<Self> {
        let request = CmRequest {
            ver_min: 0x100,
            ver_max: 0x100,
            vq,
            instance: NEW_INSTANCE,
            sq_size: size,
            rq_size: 8,
            max_in_msg: 4352,
            flags: CmFlags::IMM_RX,
        };
        let mut port = port(&rig.switch(), n, false);
        let queues = Queues { sends: 64, receives: 64 };
        let endpoint = port.endpoint();
        let conn = endpoint.connect(rig.address.ip(), rig.address.port(), queues, &request.emit()).unwrap();
        let area = endpoint.arena().alloc(64 * 4352).unwrap();
        for slot in 0..64 {
            let sges = SgeList::from_slice(&[endpoint.sge(area, slot * 4352, 4352)]);
            endpoint.post_recv(conn, RecvWr { wr_id: 0, sges, bad: None }).unwrap();
        }
        let mut stranger = Self { port, conn };
        stranger.until(|event| matches!(event, Event::Connected(..))).then_some(stranger)
    }

    /// Waits for an event; whether it came before the connection ended.
    fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> bool {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT);
            self.port.run();
            while let Some(event) = self.port.endpoint().event() {
                if wanted(&event) {
                    return true;
                }
                if matches!(event, Event::Closed(_) | Event::Failed(..)) {
                    return false;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn send(&mut self, bytes: &[u8], op: SendOp) {
        let endpoint = self.port.endpoint();
        let buffer = endpoint.arena().alloc(bytes.len().max(1) as u32).unwrap();
        endpoint.arena().write(buffer, 0, bytes).unwrap();
        let sges = SgeList::from_slice(&[endpoint.sge(buffer, 0, bytes.len() as u32)]);
        let _ = endpoint.post_send(self.conn, SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, sges });
        self.port.settle();
    }

    /// Whether the target ends the connection.
    fn is_thrown_out(&mut self) -> bool {
        !self.until(|_| false)
    }
}

/// Each is thrown out, and others do not notice.
#[test]
fn strangers_hurt_themselves_only() {
    let rig = Rig::over(Carrier::Rdma, FEATURES);
    let mut disc = Disc::connect(&rig, rig.config("disk0"));
    let send = SendOp::Send { imm: None };
    let connect = {
        let extension =
            Extension { ver_min: 0x100, ver_max: 0x100, features: FEATURES, ..Extension::default() };
        let target = rig::name("disk0");
        let body = ConnectBody { target, extension: Some(extension), ..ConnectBody::default() }.emit();
        let request = Request::Connect { instance: NEW_INSTANCE, vq: 0, body: 1024, size: 32 };
        [&Command { id: 0, request }.emit()[..], &body].concat()
    };
    let rubbish: [(&[&[u8]], SendOp); 7] = [
        (&[&[0; 15]], send.clone()),
        (&[&[]], send.clone()),
        (&[&[0xff; 16]], send.clone()),
        (&[&[0; 4000]], send.clone()),
        // More than the target has room for.
        (&[&[1; 8000]], send.clone()),
        // A Connect, and then what no control queue has.
        (&[&connect, &[0xfc, 0x0f, 1, 0, 0, 200, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0]], send),
        // Immediate data, and memory that is not there.
        (&[&[1; 16]], SendOp::Write { addr: 4096, rkey: 77, imm: Some([9; 4]) }),
    ];
    for (n, (messages, op)) in (100..).zip(rubbish) {
        let mut stranger = Stranger::connect(&rig, n, u16::MAX, 8).unwrap();
        for message in messages {
            stranger.send(message, op.clone());
        }
        assert!(stranger.is_thrown_out(), "{messages:?}");
        assert_eq!(disc.request(0, 0, &[], 513).len(), 513);
    }
    // One that says nothing is thrown out too, and one that leaves at once does no harm.
    assert!(Stranger::connect(&rig, 120, 0, u16::MAX).unwrap().is_thrown_out());
    drop(Stranger::connect(&rig, 121, 0, 0));
    assert_eq!(disc.request(0, 0, &[], 4097).len(), 4097);
}
