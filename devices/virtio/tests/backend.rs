//! The block device over a backend that answers later, as a remote target does.

mod driver;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use driver::*;
use virtio::Block;
use virtio::block::{BlockBackend, BlockError, Capabilities, Operation, Request};

const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x100;
const BODY: u64 = DATA + 0x1000;
const OUT: u32 = 1;
const F_FLUSH: u64 = 1 << 9;

/// Keeps requests until told.
#[derive(Default)]
struct Remote {
    requests: Mutex<Vec<Request>>,
    quiesced: AtomicU64,
}

impl BlockBackend for Remote {
    fn sectors(&self) -> u64 {
        1024
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn submit(&self, request: Request) {
        self.requests.lock().unwrap().push(request);
    }

    fn quiesce(&self) {
        self.quiesced.fetch_add(1, SeqCst);
    }
}

fn disk(features: u64) -> (Driver, Arc<Remote>) {
    let remote = Arc::new(Remote::default());
    let mut driver = Driver::new(Arc::new(Block::new(remote.clone(), 1, "remote")));
    driver.start(VERSION_1 | features, 16);
    (driver, remote)
}

/// Offers a request of one sector at descriptors `3 * number`, with a status byte of its own.
fn submit(driver: &mut Driver, number: u16, kind: u32) {
    let header = HEADER + u64::from(number) * 16;
    driver.poke(header, &kind.to_le_bytes());
    driver.poke(header + 8, &u64::from(number).to_le_bytes());
    driver.poke(STATUS + u64::from(number), &[0xaa]);
    let (first, write) = (number * 3, if kind == OUT { 0 } else { WRITE });
    driver.write_descriptor(desc(0), first, (header, 16, NEXT, first + 1));
    driver.write_descriptor(desc(0), first + 1, (BODY, 512, NEXT | write, first + 2));
    driver.write_descriptor(desc(0), first + 2, (STATUS + u64::from(number), 1, WRITE, 0));
    driver.offer(0, first);
    driver.run();
}

#[test]
fn requests_complete_in_any_order_from_another_thread() {
    let (mut driver, remote) = disk(F_FLUSH);
    (0..4).for_each(|number| submit(&mut driver, number, 0));
    assert_eq!(driver.used(0), None);
    let requests = std::mem::take(&mut *remote.requests.lock().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| requests.into_iter().rev().for_each(|request| request.complete(Ok(()))));
    });
    driver.run();
    let used: Vec<_> = std::iter::from_fn(|| driver.used(0)).collect();
    assert_eq!(used, [(9, 513), (6, 513), (3, 513), (0, 513)]);
    assert_eq!(driver.peek::<4>(STATUS), [0; 4]);
}

#[test]
fn failed_and_dropped_requests_get_an_error_status() {
    let (mut driver, remote) = disk(F_FLUSH);
    (0..3).for_each(|number| submit(&mut driver, number, 0));
    let mut requests = std::mem::take(&mut *remote.requests.lock().unwrap());
    drop(requests.remove(0));
    requests.remove(0).complete(Err(BlockError::Unsupported));
    requests.remove(0).complete(Err(BlockError::Io));
    driver.run();
    assert_eq!(std::iter::from_fn(|| driver.used(0)).count(), 3);
    assert_eq!(driver.peek::<3>(STATUS), [1, 2, 1]);
}

#[test]
fn reset_and_loss_of_bus_mastering_quiesce_the_backend() {
    let (mut driver, remote) = disk(F_FLUSH);
    submit(&mut driver, 0, 0);
    let before = remote.quiesced.load(SeqCst);
    driver.function.config_write(4, &[2, 0]);
    assert_eq!(remote.quiesced.load(SeqCst), before + 1);
    driver.set_status(0);
    assert_eq!(remote.quiesced.load(SeqCst), before + 2);
    remote.requests.lock().unwrap().clear();
    driver.run();
    assert_eq!(driver.peek::<1>(STATUS), [0xaa], "memory belongs to the guest after the reset");
}

#[test]
fn writes_are_durable_when_the_driver_cannot_flush() {
    for (features, expected) in [(F_FLUSH, false), (0, true)] {
        let (mut driver, remote) = disk(features);
        submit(&mut driver, 2, OUT);
        let requests = remote.requests.lock().unwrap();
        let [Request { operation: Operation::Write { offset, durable, .. }, .. }] = &requests[..] else {
            panic!("one write")
        };
        assert_eq!((*offset, *durable), (2 * 512, expected));
    }
}
