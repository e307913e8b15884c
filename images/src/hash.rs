//! SHA-256 of bytes, files and directory trees, in hexadecimal.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Named, Result};

/// Hash of a byte string.
pub(crate) fn bytes(data: &[u8]) -> String {
    hex(Sha256::digest(data).as_slice())
}

/// Hash of a file's content.
pub(crate) fn file(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).named("open", path)?;
    io::copy(&mut file, &mut hasher).named("read", path)?;
    Ok(hex(hasher.finalize().as_slice()))
}

/// Hash of all regular files below `dir`: of the lines "HASH  RELATIVE/PATH", sorted by path, so that
/// `find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum` with the leading `./` removed gives the same.
pub(crate) fn tree(dir: &Path) -> Result<String> {
    let mut files = files_below(dir)?;
    files.sort();
    let mut lines = String::new();
    for path in files {
        let relative = path.strip_prefix(dir).expect("the walk stays below its root");
        lines.push_str(&format!("{}  {}\n", file(&path)?, relative.display()));
    }
    Ok(bytes(lines.as_bytes()))
}

/// Regular files below `dir`, in no particular order.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).named("read", &dir)? {
            let entry = entry.named("read", &dir)?;
            let kind = entry.file_type().named("read", entry.path())?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_hash_is_that_of_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        fs::write(dir.path().join("b/two"), "2").unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        let lines = format!("{}  a\n{}  b/two\n", bytes(b"1"), bytes(b"2"));
        assert_eq!(tree(dir.path()).unwrap(), bytes(lines.as_bytes()));
        assert_eq!(bytes(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
