//! Initramfs archives (the kernel's "newc" format), written without root.
//!
//! The kernel unpacks concatenated archives one after the other, so what differs between two runs of a guest is a
//! small archive behind a large one that stays the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cpio::newc::{self, Builder};

use crate::error::{Error, Named, Result};
use crate::hash;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// A file of the host that is to appear in a guest.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Absolute path in the guest.
    pub guest: PathBuf,
    /// File of the host whose content it gets.
    pub host: PathBuf,
    /// Permission bits; those of the host's file if `None`.
    pub mode: Option<u32>,
}

/// Writes an archive at `out` that adds `entries` to a guest. Missing parent directories are made.
pub fn overlay(out: &Path, entries: &[Entry]) -> Result<()> {
    let mut tree = Tree::default();
    for entry in entries {
        tree.file(&entry.guest, &entry.host, entry.mode)?;
    }
    tree.write(out)
}

/// Writes the concatenation of `archives` at `out`.
pub fn concatenate(out: &Path, archives: &[&Path]) -> Result<()> {
    let mut whole = File::create(out).named("create", out)?;
    for archive in archives {
        let mut part = File::open(archive).named("open", *archive)?;
        io::copy(&mut part, &mut whole).named("write", out)?;
    }
    Ok(())
}

/// The content of an archive, built up in any order.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

#[derive(Debug)]
enum Node {
    Directory,
    HostFile { path: PathBuf, mode: u32 },
    Bytes { content: Vec<u8>, mode: u32 },
    Symlink { target: String },
}

impl Tree {
    /// Adds a file of the host. `guest` may be written with or without a leading slash, here and below.
    pub(crate) fn file(&mut self, guest: impl AsRef<Path>, host: &Path, mode: Option<u32>) -> Result<()> {
        let data = fs::metadata(host).named("read", host)?;
        if !data.is_file() {
            let problem = "is not a regular file".to_owned();
            return Err(Error::Content { path: host.to_owned(), problem });
        }
        let mode = mode.unwrap_or(data.permissions().mode()) & 0o7777;
        self.insert(guest.as_ref(), Node::HostFile { path: host.to_owned(), mode });
        Ok(())
    }

    pub(crate) fn bytes(&mut self, guest: impl AsRef<Path>, content: impl Into<Vec<u8>>, mode: u32) {
        self.insert(guest.as_ref(), Node::Bytes { content: content.into(), mode });
    }

    pub(crate) fn directory(&mut self, guest: impl AsRef<Path>) {
        self.insert(guest.as_ref(), Node::Directory);
    }

    pub(crate) fn symlink(&mut self, guest: impl AsRef<Path>, target: &str) {
        self.insert(guest.as_ref(), Node::Symlink { target: target.to_owned() });
    }

    /// Adds all regular files below a directory of the host, at `guest`.
    pub(crate) fn copy_of(&mut self, guest: impl AsRef<Path>, host: &Path) -> Result<()> {
        for file in hash::files_below(host)? {
            let relative = file.strip_prefix(host).expect("the walk stays below its root");
            self.file(guest.as_ref().join(relative), &file, None)?;
        }
        Ok(())
    }

    fn insert(&mut self, guest: &Path, node: Node) {
        let path = normal(guest);
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            self.nodes.entry(parent.to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(path, node);
    }

    /// Writes the archive. Equal trees give equal archives.
    pub(crate) fn write(&self, out: &Path) -> Result<()> {
        let mut writer = BufWriter::new(File::create(out).named("create", out)?);
        for (inode, (path, node)) in (1..).zip(&self.nodes) {
            write_node(&mut writer, inode, path, node)?;
        }
        let mut writer = newc::trailer(writer).named("write", out)?;
        writer.flush().named("write", out)
    }
}

/// The path relative to the root, with the directories that a merged `/usr` replaces by links resolved. Without that,
/// a directory entry `bin` in a later archive would remove the link `/bin` that an earlier one made.
fn normal(guest: &Path) -> PathBuf {
    let relative: PathBuf =
        guest.components().filter(|part| matches!(part, std::path::Component::Normal(_))).collect();
    let merged = ["bin", "sbin", "lib", "lib64"].iter().any(|dir| relative.starts_with(dir));
    let is_link = relative.components().count() == 1;
    if merged && !is_link { Path::new("usr").join(relative) } else { relative }
}

fn write_node(writer: &mut impl Write, inode: u32, path: &Path, node: &Node) -> Result<()> {
    let name = path.to_str().ok_or_else(|| Error::Content {
        path: path.to_owned(),
        problem: "has a name that is not UTF-8".to_owned(),
    })?;
    let (mode, content) = match node {
        Node::Directory if path == Path::new("tmp") => (DIRECTORY | 0o1777, Vec::new()),
        Node::Directory => (DIRECTORY | 0o755, Vec::new()),
        Node::HostFile { path, mode } => (REGULAR | mode, fs::read(path).named("read", path)?),
        Node::Bytes { content, mode } => (REGULAR | mode, content.clone()),
        Node::Symlink { target } => (SYMLINK | 0o777, target.clone().into_bytes()),
    };
    let size = u32::try_from(content.len()).map_err(|_| Error::Content {
        path: path.to_owned(),
        problem: "is larger than the 4 GiB an initramfs entry can hold".to_owned(),
    })?;
    let mut entry = Builder::new(name).ino(inode).nlink(1).mode(mode).write(writer, size);
    entry.write_all(&content).named("write", path)?;
    entry.finish().named("write", path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use cpio::NewcReader;

    use super::*;

    fn listing(archive: &Path) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut file = File::open(archive).unwrap();
        loop {
            let mut reader = NewcReader::new(file).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            found.push((name, mode, content));
            file = reader.finish().unwrap();
        }
    }

    #[test]
    fn an_overlay_resolves_the_merged_usr_and_makes_parents() {
        let dir = tempfile::tempdir().unwrap();
        let (host, out) = (dir.path().join("app"), dir.path().join("out.cpio"));
        fs::write(&host, "binary").unwrap();
        let entry = Entry { guest: "/bin/app".into(), host, mode: Some(0o755) };
        overlay(&out, &[entry]).unwrap();
        let expected = [
            ("usr".to_owned(), DIRECTORY | 0o755, vec![]),
            ("usr/bin".to_owned(), DIRECTORY | 0o755, vec![]),
            ("usr/bin/app".to_owned(), REGULAR | 0o755, b"binary".to_vec()),
        ];
        assert_eq!(listing(&out), expected);
    }

    #[test]
    fn paths_cannot_leave_the_guest_root() {
        assert_eq!(normal(Path::new("/../etc/./passwd")), Path::new("etc/passwd"));
        assert_eq!(normal(Path::new("bin")), Path::new("bin"));
        assert_eq!(normal(Path::new("/lib/modules/x")), Path::new("usr/lib/modules/x"));
    }

    #[test]
    fn a_directory_is_refused_as_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry { guest: "/x".into(), host: dir.path().to_owned(), mode: None };
        let error = overlay(&dir.path().join("out.cpio"), &[entry]).unwrap_err();
        assert!(error.to_string().ends_with("is not a regular file"));
    }
}
