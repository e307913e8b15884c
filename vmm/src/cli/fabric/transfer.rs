//! Reading, writing and verifying parts of a disk, many requests at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use virtio_fabric::initiator::Token;

use super::Common;
use super::disk::{RemoteDisk, Request, SECTOR};
use crate::config::values::ByteSize;
use crate::error::{Error, Exit, Result};

/// Bytes of one request.
const CHUNK: u64 = 256 << 10;
/// Requests at a time.
const DEPTH: usize = 16;

/// Which part of a disk.
#[derive(Debug, Args)]
struct Part {
    /// First byte, a multiple of 512
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: ByteSize,

    /// How many bytes, a multiple of 512 [default: to the end]
    #[arg(long, value_name = "SIZE")]
    length: Option<ByteSize>,
}

impl Part {
    /// Its start and length, inside the disk.
    fn of(&self, disk: &RemoteDisk) -> Result<(u64, u64)> {
        disk.check_disk()?;
        let (offset, size) = (self.offset.0, disk.size());
        let length = self.length.map_or_else(|| size.saturating_sub(offset), |length| length.0);
        if !offset.is_multiple_of(SECTOR) || !length.is_multiple_of(SECTOR) {
            return Err(Error::Usage("Offset and length must be multiples of 512".to_owned()));
        }
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok((offset, length)),
            _ => {
                Err(Error::Usage(format!("The disk has {size} bytes, fewer than {length} from {offset} on")))
            }
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Read {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    part: Part,

    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Read {
    pub(super) fn run(self) -> Result<Exit> {
        let mut disk = RemoteDisk::connect(&self.common, 1)?;
        let (offset, length) = self.part.of(&disk)?;
        let mut out: Box<dyn io::Write> = match &self.output {
            Some(path) => {
                Box::new(File::create(path).map_err(|e| Error::io(format!("create {}", path.display()), e))?)
            }
            None => Box::new(io::stdout().lock()),
        };
        read(&mut disk, offset, length, |_, data| {
            out.write_all(data).map_err(|e| Error::io("write what was read", e))
        })?;
        out.flush().map_err(|e| Error::io("write what was read", e))?;
        Ok(Exit::PoweredOff)
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Write {
    #[command(flatten)]
    common: Common,

    /// First byte, a multiple of 512
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: ByteSize,

    /// Read from this file instead of standard input; its size must be a multiple of 512
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

impl Write {
    pub(super) fn run(self) -> Result<Exit> {
        let mut disk = RemoteDisk::connect(&self.common, 1)?;
        let (offset, room) = Part { offset: self.offset, length: None }.of(&disk)?;
        let mut input: Box<dyn io::Read> = match &self.input {
            Some(path) => {
                Box::new(File::open(path).map_err(|e| Error::io(format!("open {}", path.display()), e))?)
            }
            None => Box::new(io::stdin().lock()),
        };
        let written = write(&mut disk, offset, |at| {
            let mut data = Vec::new();
            input.by_ref().take(CHUNK).read_to_end(&mut data).map_err(|e| Error::io("read the input", e))?;
            if !(data.len() as u64).is_multiple_of(SECTOR) {
                return Err(Error::Usage("The input is not a multiple of 512 bytes long".to_owned()));
            }
            if at - offset + data.len() as u64 > room {
                return Err(Error::Usage(format!("The input is longer than the {room} bytes there are")));
            }
            Ok(data)
        })?;
        super::super::write_out(&format!("{written} bytes written\n"))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Verify {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    part: Part,

    /// Yes, what is on the disk may be lost
    #[arg(long)]
    overwrite: bool,

    /// Another seed gives another pattern
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Verify {
    pub(super) fn run(self) -> Result<Exit> {
        if !self.overwrite {
            return Err(Error::Usage(
                "This destroys what is on the disk: say --overwrite if that is right".to_owned(),
            ));
        }
        let mut disk = RemoteDisk::connect(&self.common, 1)?;
        let (offset, length) = self.part.of(&disk)?;
        let end = offset + length;
        write(&mut disk, offset, |at| Ok(pattern(self.seed, at, CHUNK.min(end - at))))?;
        let mut wrong = None;
        read(&mut disk, offset, length, |at, data| {
            if *data != pattern(self.seed, at, data.len() as u64) {
                wrong.get_or_insert(at);
            }
            Ok(())
        })?;
        match wrong {
            Some(at) => Err(Error::Failure(format!("What was read near byte {at} is not what was written"))),
            None => super::super::write_out(&format!("{length} bytes written, read back and found equal\n")),
        }
    }
}

/// Bytes that tell where they belong: each eight of them are a mix of seed and position.
fn pattern(seed: u64, at: u64, length: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ n;
    (0..length / 8).flat_map(|n| word(at / 8 + n).to_le_bytes()).collect()
}

/// Reads a part and gives `sink` its pieces in order.
fn read(
    disk: &mut RemoteDisk,
    offset: u64,
    length: u64,
    mut sink: impl FnMut(u64, &Bytes) -> Result<()>,
) -> Result<()> {
    let end = offset + length;
    let (mut next, mut wanted) = (offset, offset);
    let mut at: BTreeMap<Token, u64> = BTreeMap::new();
    let mut early: BTreeMap<u64, Bytes> = BTreeMap::new();
    while wanted < end {
        while next < end && at.len() + early.len() < DEPTH {
            let length = CHUNK.min(end - next) as u32;
            at.insert(disk.submit(Request::Read { offset: next, length })?, next);
            next += u64::from(length);
        }
        disk.step()?;
        while let Some((token, result)) = disk.finished() {
            if let Some(at) = at.remove(&token) {
                early.insert(at, result?);
            }
        }
        while let Some(data) = early.remove(&wanted) {
            sink(wanted, &data)?;
            wanted += data.len() as u64;
        }
    }
    Ok(())
}

/// Writes what `source` gives for each position until it gives nothing, and makes it durable.
fn write(disk: &mut RemoteDisk, offset: u64, mut source: impl FnMut(u64) -> Result<Vec<u8>>) -> Result<u64> {
    let (mut next, mut under_way, mut ended) = (offset, 0, false);
    while !ended || under_way > 0 {
        while !ended && under_way < DEPTH {
            let data = source(next)?;
            ended = data.is_empty();
            if !ended {
                let length = data.len() as u64;
                disk.submit(Request::Write { offset: next, data: data.into() })?;
                next += length;
                under_way += 1;
            }
        }
        if under_way > 0 {
            disk.step()?;
        }
        while let Some((_, result)) = disk.finished() {
            result?;
            under_way -= 1;
        }
    }
    disk.execute(Request::Flush)?;
    Ok(next - offset)
}
