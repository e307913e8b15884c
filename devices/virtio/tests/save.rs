//! A device whose state is taken out and put back.

mod driver;

use std::fs::File;
use std::sync::Arc;

use device_model::save::RestoreError;
use driver::*;
use pci::Device;
use tempfile::TempDir;
use virtio::block::RawImage;
use virtio::{Block, Rng, VirtioPci};

const F_FLUSH: u64 = 1 << 9;

fn block(directory: &TempDir, name: &str) -> Arc<Block> {
    let path = directory.path().join(name);
    File::create(&path).unwrap().set_len(64 * 512).unwrap();
    Arc::new(Block::new(Arc::new(RawImage::open(&path, false).unwrap()), 1, "disk-0"))
}

#[test]
fn restored_device_goes_on_with_its_queue() {
    let directory = TempDir::new().unwrap();
    let mut driver = Driver::new(block(&directory, "old"));
    driver.start(VERSION_1 | F_FLUSH, 16);
    // A write of the first sector.
    driver.poke(DATA, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let request = [(DATA, 16, false), (DATA + 0x1000, 512, false), (DATA + 0x100, 1, true)];
    for round in 0..20_u64 {
        driver.submit(0, &request);
        if round % 3 == 2 {
            // Between the notification and the answer to it.
            let record = driver.device.save().unwrap();
            let successor = block(&directory, &format!("new{round}"));
            driver.bells[0].take();
            driver.device = Arc::new(VirtioPci::new(successor, driver.wiring()).unwrap());
            driver.device.set_bus_master(true);
            driver.device.restore(&record).unwrap();
            assert!(driver.bells[0].take(), "what waits in the queue is looked for");
        }
        driver.device.process_queue(0);
        assert_eq!(driver.router.take(), [1]);
        assert!(driver.used(0).is_some(), "round {round}");
    }
}

#[test]
fn state_of_another_device_or_with_other_features_is_refused() {
    let directory = TempDir::new().unwrap();
    let mut driver = Driver::new(block(&directory, "disk"));
    driver.start(VERSION_1 | F_FLUSH, 16);
    let record = driver.device.save().unwrap();
    let other = Driver::new(Arc::new(Rng));
    let refused = other.device.restore(&record);
    assert!(matches!(refused, Err(RestoreError::Invalid { .. })), "{refused:?}");
}
