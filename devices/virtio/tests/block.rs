//! The block device over a raw image, as a driver sees it.

mod driver;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use driver::*;
use tempfile::TempDir;
use virtio::Block;
use virtio::block::{BlockBackend, ImageError, RawImage};

const SECTORS: usize = 64;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

const F_FLUSH: u64 = 1 << 9;
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x100;
const BODY: u64 = DATA + 0x1000;

struct Disk {
    driver: Driver,
    path: PathBuf,
    _directory: TempDir,
}

/// A disk whose sectors hold their own numbers.
fn disk(read_only: bool, queues: u16) -> Disk {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("disk.img");
    let mut file = File::create(&path).unwrap();
    for sector in 0..SECTORS {
        file.write_all(&[sector as u8; 512]).unwrap();
    }
    let image = RawImage::open(&path, read_only).unwrap();
    let mut driver = Driver::new(Arc::new(Block::new(Arc::new(image), queues, "disk-0")));
    driver.start(VERSION_1 | F_FLUSH, 16);
    Disk { driver, path, _directory: directory }
}

impl Disk {
    /// Runs a request with the given data segments; returns status and used length.
    fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32, bool)]) -> (u8, u32) {
        self.header(kind, sector);
        let mut parts = vec![(HEADER, 16, false)];
        parts.extend(data);
        parts.push((STATUS, 1, true));
        self.driver.poke(STATUS, &[0xaa]);
        self.driver.submit(0, &parts);
        self.driver.run();
        let (_, length) = self.driver.used(0).expect("the request came back");
        (self.driver.peek::<1>(STATUS)[0], length)
    }

    fn header(&self, kind: u32, sector: u64) {
        self.driver.poke(HEADER, &kind.to_le_bytes());
        self.driver.poke(HEADER + 8, &sector.to_le_bytes());
    }

    /// A discard or write-zeroes request.
    fn range(&mut self, kind: u32, sector: u64, count: u32, flags: u32) -> u8 {
        self.driver.poke(BODY, &sector.to_le_bytes());
        self.driver.poke(BODY + 8, &count.to_le_bytes());
        self.driver.poke(BODY + 12, &flags.to_le_bytes());
        self.request(kind, 0, &[(BODY, 16, false)]).0
    }

    fn sector(&self, sector: u64) -> [u8; 512] {
        let mut data = [0; 512];
        File::open(&self.path).unwrap().read_exact_at(&mut data, sector * 512).unwrap();
        data
    }
}

#[test]
fn read_fills_scattered_segments() {
    let mut disk = disk(false, 1);
    let result = disk.request(IN, 3, &[(BODY, 100, true), (BODY + 0x1000, 924, true)]);
    assert_eq!(result, (OK, 1025));
    assert_eq!(disk.driver.peek::<100>(BODY), [3; 100]);
    assert_eq!(disk.driver.peek::<412>(BODY + 0x1000), [3; 412]);
    assert_eq!(disk.driver.peek::<512>(BODY + 0x1000 + 412), [4; 512]);
}

#[test]
fn write_reaches_the_image_and_nothing_else() {
    let mut disk = disk(false, 1);
    disk.driver.poke(BODY, &[0xee; 512]);
    assert_eq!(disk.request(OUT, 9, &[(BODY, 512, false)]), (OK, 1));
    assert_eq!((disk.sector(8), disk.sector(9), disk.sector(10)), ([8; 512], [0xee; 512], [10; 512]));
    assert_eq!(disk.request(FLUSH, 0, &[]), (OK, 1));
}

#[test]
fn header_and_status_may_be_split_and_shared_with_data() {
    let mut disk = disk(false, 1);
    disk.header(IN, 5);
    disk.driver.submit(0, &[(HEADER, 7, false), (HEADER + 7, 9, false), (BODY, 513, true)]);
    disk.driver.run();
    assert_eq!(disk.driver.used(0), Some((0, 513)));
    assert_eq!(disk.driver.peek::<513>(BODY)[511..], [5, OK]);
}

#[test]
fn request_larger_than_the_copy_buffer_is_whole() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("big.img");
    let content: Vec<u8> = (0..0x3_0000_u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let image = Arc::new(RawImage::open(&path, false).unwrap());
    let mut driver = Driver::new(Arc::new(Block::new(image, 1, "big")));
    driver.start(VERSION_1 | F_FLUSH, 16);
    let mut disk = Disk { driver, path, _directory: directory };
    assert_eq!(disk.request(IN, 1, &[(BODY, 0x2_fe00, true)]), (OK, 0x2_fe01));
    assert_eq!(disk.driver.peek::<0x2_fe00>(BODY)[..], content[512..]);
}

#[test]
fn id_is_the_serial() {
    let mut disk = disk(false, 1);
    assert_eq!(disk.request(GET_ID, 0, &[(BODY, 20, true)]), (OK, 21));
    assert_eq!(&disk.driver.peek::<20>(BODY), b"disk-0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn zeroes_and_discards_stay_inside_their_range() {
    let mut disk = disk(false, 1);
    assert_eq!(disk.range(WRITE_ZEROES, 10, 2, 0), OK);
    assert_eq!(disk.range(WRITE_ZEROES, 20, 1, 1), OK);
    assert_eq!(disk.range(DISCARD, 30, 1, 0), OK);
    for (sector, zero) in
        [(9, false), (10, true), (11, true), (12, false), (20, true), (21, false), (31, false)]
    {
        let expected = if zero { 0 } else { sector as u8 };
        assert_eq!(disk.sector(sector), [expected; 512], "sector {sector}");
    }
    assert_eq!(disk.path.metadata().unwrap().len(), SECTORS as u64 * 512);
}

#[test]
fn requests_that_make_no_sense_get_an_error_status() {
    let mut disk = disk(false, 1);
    let last = SECTORS as u64 - 1;
    let data = [(BODY, 1024, true)];
    assert_eq!(disk.request(IN, last, &data).0, IOERR, "beyond the end");
    assert_eq!(disk.request(IN, u64::MAX, &data).0, IOERR, "wrapping");
    assert_eq!(disk.request(IN, u64::MAX / 512 + 1, &data).0, IOERR, "wrapping in bytes");
    assert_eq!(disk.request(IN, 0, &[(BODY, 100, true)]).0, IOERR, "not whole sectors");
    assert_eq!(disk.request(IN, 0, &[(u64::MAX - 511, 512, true)]).0, IOERR, "wrapping address");
    assert_eq!(disk.request(IN, 0, &[(RAM_SIZE as u64 - 8, 512, true)]).0, IOERR, "not RAM");
    assert_eq!(disk.request(OUT, 0, &[(RAM_SIZE as u64, 512, false)]).0, IOERR, "not RAM");
    assert_eq!(disk.request(IN, 0, &[(BODY, u32::MAX - 511, true)]).0, IOERR, "huge");
    assert_eq!(disk.request(99, 0, &[]).0, UNSUPP);
    assert_eq!(disk.range(DISCARD, last, 2, 0), IOERR);
    assert_eq!(disk.range(DISCARD, 0, u32::MAX, 0), IOERR);
    assert_eq!(disk.range(DISCARD, 0, 1, 1), UNSUPP);
    assert_eq!(disk.range(WRITE_ZEROES, 0, 1, 2), UNSUPP);
    assert_eq!(disk.request(DISCARD, 0, &[(BODY, 15, false)]).0, IOERR);
    assert_eq!(disk.sector(0), [0; 512]);
    assert_eq!(disk.sector(last), [last as u8; 512]);
    assert_eq!(disk.request(IN, 0, &[]), (OK, 1), "an empty read is nothing wrong");
}

#[test]
fn status_outside_ram_loses_the_status_only() {
    let mut disk = disk(false, 1);
    disk.header(IN, 0);
    disk.driver.submit(0, &[(HEADER, 16, false), (BODY, 512, true), (RAM_SIZE as u64, 1, true)]);
    disk.driver.run();
    assert_eq!((disk.driver.used(0), disk.driver.status() & NEEDS_RESET), (Some((0, 0)), 0));
}

#[test]
fn request_without_header_or_status_breaks_the_device() {
    for parts in [
        vec![(HEADER, 15, false), (STATUS, 1, true)],
        vec![(HEADER, 16, false)],
        vec![(HEADER, 16, false), (STATUS, 0, true)],
    ] {
        let mut disk = disk(false, 1);
        disk.driver.submit(0, &parts);
        disk.driver.run();
        assert_ne!(disk.driver.status() & NEEDS_RESET, 0, "{parts:?}");
    }
}

#[test]
fn read_only_disk_says_so_and_refuses_changes() {
    let mut disk = disk(true, 1);
    let features = disk.driver.device_features();
    assert_eq!(features & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    assert_eq!(disk.request(OUT, 0, &[(BODY, 512, false)]).0, IOERR);
    assert_eq!(disk.range(DISCARD, 0, 1, 0), IOERR);
    assert_eq!(disk.request(IN, 1, &[(BODY, 512, true)]).0, OK);
    assert_eq!(disk.request(FLUSH, 0, &[]).0, OK);
}

#[test]
fn configuration_tells_size_and_queues() {
    let disk = disk(false, 3);
    assert_eq!(u64::from_le_bytes(disk.driver.read(0x2000)), SECTORS as u64);
    assert_eq!(u32::from_le_bytes(disk.driver.read(0x200c)), 126);
    assert_eq!(u16::from_le_bytes(disk.driver.read(0x2000 + 34)), 3);
    assert_eq!(disk.driver.read::<8>(0x2000 + 60), [0; 8]);
    assert_ne!(disk.driver.device_features() & 1 << 12, 0);
}

#[test]
fn every_queue_works() {
    let mut disk = disk(false, 3);
    for queue in 0..3 {
        disk.header(IN, 40 + u64::from(queue));
        disk.driver.submit(queue, &[(HEADER, 16, false), (BODY, 512, true), (STATUS, 1, true)]);
        disk.driver.run();
        assert_eq!(disk.driver.used(queue), Some((0, 513)));
        assert_eq!(disk.driver.peek::<512>(BODY), [40 + queue as u8; 512]);
        assert_eq!(disk.driver.router.take(), [queue + 1]);
    }
}

#[test]
fn full_queue_is_worked_off_in_bounded_turns() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("disk.img");
    std::fs::write(&path, [7; 512]).unwrap();
    let image = Arc::new(RawImage::open(&path, false).unwrap());
    let mut driver = Driver::new(Arc::new(Block::new(image, 1, "")));
    driver.start(VERSION_1 | EVENT_IDX, 128);
    driver.poke(HEADER, &FLUSH.to_le_bytes());
    driver.chain(desc(0), &[(HEADER, 16, false), (STATUS, 1, true)]);
    for _ in 0..128 {
        driver.offer(0, 0);
    }
    driver.bells[0].take();
    driver.device.process_queue(0);
    assert!(driver.bells[0].take(), "the rest waits for another turn");
    driver.device.process_queue(0);
    driver.run();
    assert_eq!(std::iter::from_fn(|| driver.used(0)).count(), 128);
}

#[test]
fn unsuitable_files_are_refused_with_the_reason() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("empty"), []).unwrap();
    std::fs::write(at("odd"), [0; 700]).unwrap();
    std::fs::write(at("good"), [0; 1024]).unwrap();
    let open = |name: &str| RawImage::open(&at(name), false);
    assert!(matches!(open("missing"), Err(ImageError::Open { .. })));
    assert!(matches!(RawImage::open(directory.path(), true), Err(ImageError::Kind(_))));
    assert!(matches!(open("empty"), Err(ImageError::Empty(_))));
    assert!(matches!(open("odd"), Err(ImageError::Unaligned { size: 700, .. })));
    let first = open("good").unwrap();
    assert_eq!(first.sectors(), 2);
    assert!(matches!(open("good"), Err(ImageError::Locked(_))));
    drop(first);
    let _shared = RawImage::open(&at("good"), true).unwrap();
    assert!(RawImage::open(&at("good"), true).is_ok());
    assert!(matches!(open("good"), Err(ImageError::Locked(_))));
}

#[test]
fn image_that_shrinks_under_the_guest_gives_an_error_status() {
    let mut disk = disk(false, 1);
    File::options().write(true).open(&disk.path).unwrap().set_len(512).unwrap();
    assert_eq!(disk.request(IN, 5, &[(BODY, 512, true)]).0, IOERR);
    assert_eq!(disk.request(IN, 0, &[(BODY, 512, true)]).0, OK);
}
