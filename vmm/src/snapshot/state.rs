//! The file with everything but memory.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use device_model::save::Records;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"VERBENA\n";
/// Version of the file and of the set of records in it; records have versions of their own.
const VERSION: u32 = 1;
/// Longest body in bytes.
const MAX_BODY: u64 = 1 << 30;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// CRC-32 of the body.
    checksum: U32,
    length: U64,
}

/// The file's contents.
pub(super) fn encode(records: &Records) -> Result<Vec<u8>> {
    let body = postcard::to_allocvec(records).map_err(|e| Error::Failure(e.to_string()))?;
    let header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        checksum: crc32fast::hash(&body).into(),
        length: (body.len() as u64).into(),
    };
    Ok([header.as_bytes(), &body].concat())
}

/// Why a file is no saved state.
pub(super) fn decode(bytes: &[u8]) -> Result<Records, String> {
    let (header, body) = Header::read_from_prefix(bytes).map_err(|_| "it is too short".to_owned())?;
    if header.magic != MAGIC {
        return Err("it is no saved machine".to_owned());
    }
    if header.version != VERSION {
        return Err(format!("it is of version {}, but only {VERSION} is known", header.version));
    }
    if header.length != body.len() as u64 || header.checksum != crc32fast::hash(body) {
        return Err("it is damaged: its length or checksum is wrong".to_owned());
    }
    match postcard::take_from_bytes(body) {
        Ok((records, [])) => Ok(records),
        _ => Err("its records make no sense".to_owned()),
    }
}

/// Writes the file, so that it is there as a whole or not at all.
pub(super) fn write(path: &Path, records: &Records) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("write {}", path.display()), e);
    let unfinished = path.with_extension("unfinished");
    let bytes = encode(records)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(failed)?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&unfinished, path).map_err(failed)
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<Records> {
    let failed = |e: std::io::Error| Error::io(format!("read {}", path.display()), e);
    let mut bytes = Vec::new();
    let limit = MAX_BODY + size_of::<Header>() as u64;
    File::open(path).map_err(failed)?.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    decode(&bytes).map_err(|why| Error::Failure(format!("Cannot restore {}: {why}", path.display())))
}
