//! The files of a guest inside its disk image.
//!
//! Nothing is mounted: the names of the files that a check looks at, and the contents of a few small ones, are copied out
//! of the image, and the copy is checked like any other root directory. The image is not trusted.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ext4_view::{Ext4, Ext4Read};
use tempfile::TempDir;

use super::guest::LIBRARY_DIRECTORIES;
use super::modules::MODPROBE_DIRECTORIES;
use super::{Finding, check_root};

/// Partitions start at whole MiB, whatever tool made them and whatever kind of table names them.
const ALIGNMENT: u64 = 1 << 20;
/// Where an ext4 file system has its magic number, and which (`s_magic` of the superblock).
const MAGIC_OFFSET: u64 = 0x400 + 0x38;
const MAGIC: u16 = 0xef53;
/// Longest file that is copied with its contents.
const MAX_CONTENTS: u64 = 4 << 20;
/// Most files that are copied.
const MAX_FILES: usize = 200_000;
/// Deepest directory that is looked into.
const MAX_DEPTH: usize = 16;

/// Checks a guest's raw disk image.
pub fn check_disk(image: &Path) -> Vec<Finding> {
    let problem = |state: String| {
        let remedy = "Give a raw image with an ext4 file system, on its own or in a partition (qemu-img convert -O raw \
                      makes one of any other format). Other file systems: mount the image and use --root.";
        vec![Finding::problem("Guest disk", state, remedy)]
    };
    match unpack(image) {
        Ok(Some(root)) => check_root(root.path()),
        Ok(None) => problem(format!("{} has no ext4 file system with a guest's /etc", image.display())),
        Err(error) => problem(format!("{} cannot be read: {error}", image.display())),
    }
}

/// Copies what is looked at out of the first file system that is a guest's root.
fn unpack(image: &Path) -> io::Result<Option<TempDir>> {
    let file = File::open(image)?;
    let Some(system) = file_systems(&file).find(is_root) else { return Ok(None) };
    let target = tempfile::tempdir()?;
    let mut copy = Copy { system: &system, target: target.path(), files_left: MAX_FILES };
    for tree in ["lib/modules", "usr/lib/modules"] {
        copy.directory(tree, MAX_DEPTH, |name| name.starts_with("modules.") || name == "config")?;
    }
    for libraries in LIBRARY_DIRECTORIES {
        copy.directory(libraries, 0, |_| false)?;
        copy.directory(&format!("{libraries}/libibverbs"), 0, |_| false)?;
    }
    for configuration in MODPROBE_DIRECTORIES {
        copy.directory(configuration, 0, |name| name.ends_with(".conf"))?;
    }
    copy.directory("boot", 0, |name| name.starts_with("config-"))?;
    copy.directory("etc/libibverbs.d", 0, |_| false)?;
    copy.directory("etc/security", 1, |name| name.ends_with(".conf"))?;
    Ok(Some(target))
}

fn is_root(system: &Ext4) -> bool {
    system.exists("/etc").unwrap_or(false)
}

/// The file systems of an image, in order. Broken ones are passed over.
fn file_systems(file: &File) -> impl Iterator<Item = Ext4> {
    // Also that of a block device, which has no length to ask for, ends where reading does.
    let magics = (0..).map_while(|number| {
        let (start, mut magic) = (number * ALIGNMENT, [0; 2]);
        file.read_exact_at(&mut magic, start + MAGIC_OFFSET).ok()?;
        Some((start, u16::from_le_bytes(magic)))
    });
    magics.filter(|(_, magic)| *magic == MAGIC).filter_map(|(start, _)| {
        let file = file.try_clone().ok()?;
        Ext4::load(Box::new(Partition { file, start })).ok()
    })
}

/// The part of an image from some byte on.
struct Partition {
    file: File,
    start: u64,
}

impl Ext4Read for Partition {
    fn read(&mut self, start_byte: u64, dst: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let at = self.start.checked_add(start_byte).ok_or("address beyond 64 bits")?;
        Ok(self.file.read_exact_at(dst, at)?)
    }
}

/// Copies directories out of a file system.
struct Copy<'a> {
    system: &'a Ext4,
    target: &'a Path,
    files_left: usize,
}

impl Copy<'_> {
    /// Copies a directory, if it is there, and `depth` levels of directories in it. Files whose name is `wanted` get their
    /// contents, others stay empty; links become empty files.
    fn directory(&mut self, path: &str, depth: usize, wanted: fn(&str) -> bool) -> io::Result<()> {
        let source = format!("/{path}");
        let is_directory = self.system.metadata(source.as_str()).is_ok_and(|data| data.is_dir());
        if !is_directory {
            return Ok(());
        }
        fs::create_dir_all(self.target.join(path))?;
        for entry in self.system.read_dir(source.as_str())? {
            let entry = entry?;
            let name = entry.file_name();
            // Names that are not text are nobody's whom we look for.
            let Some(name) = name.as_str().ok().filter(|name| !matches!(*name, "." | "..")) else { continue };
            self.files_left =
                self.files_left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many files"))?;
            let below = format!("{path}/{name}");
            match entry.file_type()? {
                kind if kind.is_dir() && depth > 0 => self.directory(&below, depth - 1, wanted)?,
                kind if kind.is_dir() => {}
                kind => {
                    let contents =
                        if kind.is_regular_file() && wanted(name) { self.contents(&below)? } else { vec![] };
                    fs::write(self.target.join(&below), contents)?;
                }
            }
        }
        Ok(())
    }

    fn contents(&self, path: &str) -> io::Result<Vec<u8>> {
        let source = format!("/{path}");
        if self.system.metadata(source.as_str())?.len() > MAX_CONTENTS {
            return Err(io::Error::other(format!("{source} is longer than anybody would make it")));
        }
        Ok(self.system.read(source.as_str())?)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::Level;
    use super::*;

    /// An image of 8 MiB with these files, in a partition that starts at `start`.
    fn image(dir: &Path, start: u64, files: &[&str]) -> std::path::PathBuf {
        let root = dir.join("root");
        for name in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let image = dir.join("disk.raw");
        File::create(&image).unwrap().set_len(start + (8 << 20)).unwrap();
        let offset = format!("offset={start}");
        let status = Command::new("mke2fs")
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .args(["-q", "-t", "ext4", "-E", &offset, "-d"])
            .args([&root, &image])
            .arg("8M")
            .status();
        assert!(status.expect("mke2fs of e2fsprogs is needed").success());
        image
    }

    const GUEST: [&str; 5] = [
        "lib/modules/6.1.0/kernel/drivers/net/vmxnet3/vmxnet3.ko.xz",
        "lib/modules/6.1.0/modules.builtin",
        "usr/lib/x86_64-linux-gnu/libibverbs.so.1",
        "usr/lib/x86_64-linux-gnu/libibverbs/libvmw_pvrdma-rdmav34.so",
        "etc/libibverbs.d/vmw_pvrdma.driver",
    ];

    #[test]
    fn files_in_a_partition_are_found_and_missing_ones_missed() {
        for start in [0, 5 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let findings = check_disk(&image(dir.path(), start, &GUEST));
            let level =
                |subject: &str| findings.iter().find(|finding| finding.subject == subject).unwrap().level;
            assert_eq!(level("Guest module vmxnet3"), Level::Good);
            assert_eq!(level("Guest module vmw_pvrdma"), Level::Problem);
            assert_eq!(level("Guest user space"), Level::Good);
        }
    }

    #[test]
    fn image_without_a_guest_is_a_problem_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let empty = image(dir.path(), 0, &["data/file"]);
        for path in [&empty, Path::new("/dev/null"), Path::new("/no/such/file"), dir.path()] {
            let findings = check_disk(path);
            assert_eq!((findings.len(), findings[0].level), (1, Level::Problem), "{}", path.display());
            assert!(findings[0].remedy.contains("--root"));
        }
    }

    #[test]
    fn damaged_image_is_no_more_than_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 0, &GUEST);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // Every byte of the superblock and of the group descriptors behind it.
        for at in (0x400..0x800).chain(0x1000..0x1040) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
            assert!(!check_disk(&path).is_empty());
            file.write_all_at(&byte, at).unwrap();
        }
    }
}
