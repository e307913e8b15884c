//! A disk of a target as a driver of this machine sees it, over a ring in real guest memory and real sockets.

#[path = "../../virtio/tests/driver/mod.rs"]
mod driver;
mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use driver::*;
use rig::{LIMIT, Rig, SIZE};
use virtio::VirtioDevice;
use virtio_fabric::Via;
use virtio_fabric::frontend::{Remote, RemoteError};
use virtio_fabric::initiator::Config;
use virtio_fabric::target::FEATURES;
use virtio_fabric::wire::Status;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;

const OK: u8 = 0;
const IOERR: u8 = 1;

const F_FLUSH: u64 = 1 << 9;
const F_MQ: u64 = 1 << 12;
/// Where the transport has the device's configuration.
const CONFIG: u64 = 0x2000;

/// Each request has its own place in guest memory, by its number.
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x1_0000;
const BODY: u64 = DATA + 0x2_0000;
const BODY_SIZE: u64 = 0x2000;

struct Guest {
    driver: Driver,
    remote: Arc<Remote>,
    changes: usize,
}

fn guest(rig: &Rig, config: Config) -> Guest {
    let remote = Arc::new(Remote::connect(config, rig.via(), vec![rig.address]).unwrap());
    let mut driver = Driver::new(Arc::clone(&remote) as Arc<dyn VirtioDevice>);
    let features = VERSION_1 | driver.device_features() & F_FLUSH;
    driver.start(features, 64);
    Guest { driver, remote, changes: 0 }
}

impl Guest {
    /// Offers a request with `length` bytes of data at the place of `number`.
    fn submit(&mut self, queue: u16, number: u64, kind: u32, sector: u64, length: u32) {
        let (header, status) = (HEADER + number * 16, STATUS + number);
        self.driver.poke(header, &kind.to_le_bytes());
        self.driver.poke(header + 8, &sector.to_le_bytes());
        self.driver.poke(status, &[0xaa]);
        let mut parts = vec![(header, 16, false)];
        if length > 0 {
            parts.push((BODY + number * BODY_SIZE, length, kind == IN));
        }
        parts.push((status, 1, true));
        self.driver.submit(queue, &parts);
        self.driver.run();
    }

    fn step(&mut self) {
        self.changes += usize::from(self.remote.run());
        self.driver.run();
    }

    /// The used length of the next request that comes back.
    fn used(&mut self, queue: u16) -> u32 {
        let start = Instant::now();
        loop {
            if let Some((_, length)) = self.driver.used(queue) {
                return length;
            }
            assert!(start.elapsed() < LIMIT, "The request does not come back");
            self.step();
        }
    }

    fn status(&self, number: u64) -> u8 {
        self.driver.peek::<1>(STATUS + number)[0]
    }

    /// Carries out one request and returns its status.
    fn request(&mut self, kind: u32, sector: u64, length: u32) -> u8 {
        self.submit(0, 0, kind, sector, length);
        self.used(0);
        self.status(0)
    }
}

#[test]
fn a_driver_uses_a_disk_that_is_elsewhere() {
    let rig = Rig::new(FEATURES);
    let mut guest = guest(&rig, Config { queues: 2, ..rig.config("disk0") });
    assert_ne!(guest.driver.device_features() & F_MQ, 0);
    assert_eq!(guest.driver.read::<8>(CONFIG), (SIZE / 512).to_le_bytes());
    assert_eq!(guest.driver.read::<2>(CONFIG + 34), [2, 0]);
    for (queue, number) in (0..40).map(|number| (number as u16 % 2, number)) {
        guest.driver.poke(BODY + number * BODY_SIZE, &[number as u8 + 1; 4096]);
        guest.submit(queue, number, OUT, number * 8, 4096);
    }
    for number in 0..40 {
        assert_eq!(guest.used(number as u16 % 2), 1);
    }
    assert!((0..40).all(|number| guest.status(number) == OK));
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
    guest.driver.poke(BODY, &[0; 8192]);
    guest.submit(1, 0, IN, 7 * 8, 8192);
    assert_eq!(guest.used(1), 8193);
    assert_eq!(guest.driver.peek::<8192>(BODY), *[[8; 4096], [9; 4096]].as_flattened());
    // What cannot be done is the driver's to hear.
    assert_eq!(guest.request(IN, SIZE / 512, 512), IOERR);
    assert_eq!(guest.request(77, 0, 0), 2);
    // Bytes that are not there, and more than anyone would take.
    guest.driver.submit(0, &[(HEADER, 16, false), (1 << 40, 512, false), (STATUS, 1, true)]);
    guest.driver.run();
    guest.used(0);
    assert_eq!(guest.status(0), IOERR);
    let mut huge = vec![(HEADER, 16, false)];
    huge.extend([(BODY, u32::MAX / 128, false); 40]);
    huge.push((STATUS, 1, true));
    guest.driver.poke(STATUS, &[0xaa]);
    guest.driver.submit(0, &huge);
    guest.driver.run();
    guest.used(0);
    assert_eq!(guest.status(0), IOERR);
    assert_eq!(guest.request(IN, 0, 512), OK);
}

#[test]
fn one_queue_is_what_a_driver_of_one_sees() {
    let rig = Rig::new(FEATURES);
    let guest = guest(&rig, Config { queues: 1, ..rig.config("disk0") });
    assert_eq!(guest.driver.device_features() & F_MQ, 0);
    assert_eq!(guest.driver.read::<2>(CONFIG + 34), [1, 0]);
}

#[test]
fn a_driver_notices_a_lost_target_by_the_time_it_takes() {
    let mut rig = Rig::new(FEATURES);
    let mut guest = guest(&rig, rig.config("disk0"));
    for round in 0..3 {
        rig.stop(|| guest.step());
        for number in 0..30 {
            guest.driver.poke(BODY + number * BODY_SIZE, &[number as u8 ^ round; 512]);
            guest.submit(0, number, OUT, number, 512);
            guest.step();
        }
        assert!(guest.driver.used(0).is_none());
        rig.start(false);
        for _ in 0..30 {
            guest.used(0);
        }
        assert!((0..30).all(|number| guest.status(number) == OK));
    }
    guest.submit(0, 0, IN, 0, 8192);
    guest.used(0);
    let seen = guest.driver.peek::<8192>(BODY);
    assert!((0..16).all(|sector| seen[sector * 512] == sector as u8 ^ 2));
}

#[test]
fn requests_fail_when_the_target_is_not_back_in_time() {
    let mut rig = Rig::new(FEATURES);
    let config = Config { loss_timeout: Duration::from_secs(6), ..rig.config("disk0") };
    let mut guest = guest(&rig, config);
    assert_eq!(guest.request(IN, 0, 512), OK);
    rig.stop(|| {});
    assert_eq!(guest.request(IN, 0, 512), IOERR);
    // And at once from then on.
    assert_eq!(guest.request(OUT, 0, 512), IOERR);
}

#[test]
fn a_driver_is_told_of_another_size() {
    let rig = Rig::new(FEATURES);
    let mut guest = guest(&rig, rig.config("disk0"));
    rig.image().set_len(2 * SIZE).unwrap();
    rig.refresh();
    let start = Instant::now();
    while guest.changes == 0 {
        assert!(start.elapsed() < LIMIT);
        guest.step();
    }
    assert_eq!(guest.driver.read::<8>(CONFIG), (2 * SIZE / 512).to_le_bytes());
    assert_eq!(guest.request(OUT, SIZE / 512, 512), OK);
}

#[test]
fn nothing_touches_memory_after_a_reset() {
    let mut rig = Rig::new(FEATURES);
    let mut guest = guest(&rig, rig.config("disk0"));
    rig.stop(|| guest.step());
    guest.driver.poke(BODY, &[0x77; 512]);
    guest.submit(0, 0, IN, 0, 512);
    guest.driver.set_status(0);
    rig.start(false);
    // Another driver, that cannot flush; its requests come behind the reset.
    guest.driver.start(VERSION_1, 64);
    guest.submit(0, 1, OUT, 9, 512);
    guest.used(0);
    assert_eq!((guest.status(1), guest.status(0)), (OK, 0xaa));
    assert_eq!(guest.driver.peek::<512>(BODY), [0x77; 512]);
}

#[test]
fn what_is_not_there_has_a_name() {
    let rig = Rig::new(FEATURES);
    let error = Remote::connect(rig.config("tape"), rig.via(), vec![rig.address]).unwrap_err();
    assert!(matches!(error, RemoteError::Refused { status: Status::NoTarget, .. }), "{error}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = Config { loss_timeout: Duration::from_secs(2), ..rig.config("disk0") };
    let error = Remote::connect(config, Via::Tcp, vec![nobody]).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let mut rng = guest(&rig, rig.config("rng"));
    rng.driver.submit(0, &[(BODY, 64, true)]);
    rng.driver.run();
    assert_eq!(rng.used(0), 64);
}
