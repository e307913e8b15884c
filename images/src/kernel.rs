//! Debian's kernel with its modules, and the `vmw_pvrdma` driver built from the same source.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::archive::Archive;
use crate::cache::{Cache, Inputs};
use crate::error::{Error, Named, Result};
use crate::packages::{Package, PackageSet};
use crate::{command, driver, host};

/// Raised when this recipe would make something else from the same packages.
const RECIPE: u32 = 1;

/// Kernel series that guests can be given.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KernelVersion {
    /// 6.1, the kernel of Debian 12; the lab host runs it too.
    #[default]
    V6_1,
    /// 6.12, which Debian 12 offers beside it.
    V6_12,
}

impl KernelVersion {
    /// The series as Debian's package names have it: "6.1".
    pub fn series(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }

    fn meta_package(self) -> &'static str {
        match self {
            Self::V6_1 => "linux-image-amd64",
            Self::V6_12 => "linux-image-6.12-amd64",
        }
    }
}

impl std::str::FromStr for KernelVersion {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Self::V6_1, Self::V6_12]
            .into_iter()
            .find(|version| version.series() == text)
            .ok_or_else(|| format!("There is no kernel {text}; choose 6.1 or 6.12"))
    }
}

/// A kernel image with everything that belongs to it.
#[derive(Clone, Debug)]
pub struct GuestKernel {
    /// The stock bzImage.
    pub vmlinuz: PathBuf,
    /// The same kernel as an ELF file, unpacked from the bzImage: it starts without decompressing itself, which in the
    /// lab takes longer than the rest of the boot.
    pub vmlinux: PathBuf,
    /// Root of a tree that holds `lib/modules/RELEASE` with all of Debian's modules and `updates/vmw_pvrdma.ko`.
    pub root: PathBuf,
    /// Kernel release, as `uname -r` prints it.
    pub release: String,
    /// Version of the Debian packages.
    pub version: String,
    /// SHA-256 over the source of the `vmw_pvrdma` driver it was built with, taken unmodified from Debian's kernel source.
    pub driver_source_hash: String,
    series: &'static str,
    dir: PathBuf,
}

impl GuestKernel {
    /// Directory of the kernel's modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// The series it belongs to: "6.1".
    pub(crate) fn series(&self) -> &str {
        self.series
    }

    /// The artefact's own directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Cache {
    /// The kernel of a series, with the guest driver built for it.
    pub fn guest_kernel(&self, version: KernelVersion) -> Result<GuestKernel> {
        let name = format!("kernel-{}", version.series());
        let resolve = |archive: &Archive| resolve(archive, version);
        let set =
            PackageSet { name: &name, wanted: vec![version.meta_package().to_owned()], resolve: &resolve };
        let inputs = |packages: &[Package]| Ok(Inputs::recipe(RECIPE).packages(packages));
        let dir = self.make_from_packages(&name, &set, inputs, |dir, packages| self.fill(dir, packages))?;
        let read = |file: &str| {
            let path = dir.join(file);
            fs::read_to_string(&path).named("read", path)
        };
        Ok(GuestKernel {
            vmlinuz: dir.join("vmlinuz"),
            vmlinux: dir.join("vmlinux"),
            root: dir.join("root"),
            release: read("release")?,
            version: read("version")?,
            driver_source_hash: read("driver-source-hash")?,
            series: version.series(),
            dir,
        })
    }

    fn fill(&self, dir: &Path, packages: &[Package]) -> Result<()> {
        host::require(self, &[host::Purpose::Images])?;
        let (image, development) = packages.split_first().expect("the resolver puts the image first");
        let release = image.name.trim_start_matches("linux-image-").trim_end_matches("-unsigned");
        let unpacked = tempfile::tempdir_in(self.root()).named("create", self.root())?;
        self.say(&format!("unpacking Linux {release} ({})", image.version));
        let root = dir.join("root");
        self.unpack(std::slice::from_ref(image), unpacked.path())?;
        fs::create_dir_all(root.join("lib")).named("create", &root)?;
        move_to(&unpacked.path().join("lib/modules"), &root.join("lib/modules"))?;
        move_to(&unpacked.path().join(format!("boot/vmlinuz-{release}")), &dir.join("vmlinuz"))?;
        move_to(&unpacked.path().join(format!("boot/config-{release}")), &dir.join("config"))?;
        unpack_elf(&dir.join("vmlinuz"), &dir.join("vmlinux"))?;

        self.say("building the vmw_pvrdma driver from Debian's kernel source");
        self.unpack(development, unpacked.path())?;
        let driver = driver::build(unpacked.path(), release)?;
        let modules = root.join("lib/modules").join(release);
        fs::create_dir_all(modules.join("updates")).named("create", &modules)?;
        move_to(&driver.module, &modules.join("updates/vmw_pvrdma.ko"))?;
        drop_links(&modules)?;
        command::run(Command::new("/sbin/depmod").arg("-b").arg(&root).arg(release))?;

        for (name, content) in
            [("release", release), ("version", &image.version), ("driver-source-hash", &driver.source_hash)]
        {
            fs::write(dir.join(name), content).named("write", dir.join(name))?;
        }
        Ok(())
    }
}

/// The image, then what a module build needs, all of one source version.
fn resolve(archive: &Archive, version: KernelVersion) -> Result<Vec<Package>> {
    let prefix = format!("linux-image-{}.", version.series());
    let meta = archive.entry(version.meta_package())?;
    let image = meta.dependencies().find(|name| name.starts_with(&prefix)).ok_or_else(|| Error::Archive {
        problem: format!("has no kernel {}", version.series()),
        remedy: "use a machine whose apt sources name Debian 12",
    })?;
    let image = archive.entry(image)?.package()?;
    let release = image.name.trim_start_matches("linux-image-");

    let headers = archive.entry(&format!("linux-headers-{release}={}", image.version))?;
    let mut packages = vec![image.clone(), headers.package()?];
    for name in headers.dependencies() {
        if name.ends_with("-common") || name.starts_with("linux-kbuild-") {
            packages.push(archive.entry(&format!("{name}={}", image.version))?.package()?);
        }
    }
    let source = format!("linux-source-{}={}", version.series(), image.version);
    packages.push(archive.entry(&source)?.package()?);
    Ok(packages)
}

/// Kernel packages link to header packages by absolute paths of an installed system.
fn drop_links(modules: &Path) -> Result<()> {
    for link in ["build", "source"].map(|name| modules.join(name)) {
        if link.is_symlink() {
            fs::remove_file(&link).named("remove", link)?;
        }
    }
    Ok(())
}

fn move_to(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).named("create", to)
}

/// Takes the ELF kernel out of a bzImage by the payload fields of its setup header (x86 boot protocol 2.08).
fn unpack_elf(vmlinuz: &Path, vmlinux: &Path) -> Result<()> {
    let image = fs::read(vmlinuz).named("read", vmlinuz)?;
    let bad = |problem: &str| Error::Content { path: vmlinuz.to_owned(), problem: problem.to_owned() };
    let payload = payload(&image).ok_or_else(|| bad("is not a bzImage"))?;
    let program: &[&str] = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => &["xz", "--decompress", "--stdout", "--single-stream"],
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &["zstd", "--decompress", "--stdout"],
        _ => return Err(bad("is compressed in a way this recipe does not know")),
    };
    let file = fs::File::create(vmlinux).named("create", vmlinux)?;
    let mut unpacker = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::piped())
        .stdout(file)
        .spawn()
        .map_err(|source| Error::Start { program: program[0].to_owned(), source })?;
    let written = unpacker.stdin.take().map(|mut pipe| pipe.write_all(payload));
    let status = unpacker.wait().named("write", vmlinux)?;
    match written {
        Some(Ok(())) if status.success() => Ok(()),
        _ => Err(bad("has a payload that does not unpack")),
    }
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |offset: usize| {
        let bytes = image.get(offset..offset + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (setup_sectors + 1) * 512 + word(0x248)?;
    // The last word of the payload is its unpacked size, which is not part of the compressed stream.
    image.get(begin..begin.checked_add(word(0x24c)?)?.checked_sub(4)?)
}
