//! Kernel images: bzImage and ELF.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use device_model::ram::Ram;
use linux_loader::bootparam::setup_header;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use vm_memory::GuestAddress;

use super::{KERNEL, Kernel, fits, image_error, open};
use crate::error::{Error, Result};
use crate::machine::layout::HIGH_RAM;
use crate::machine::memory::low_ram_end;

/// Boot sector signature and "HdrS", which together mark a bzImage.
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = 0x5372_6448;
/// `XLF_KERNEL_64`: there is a 64-bit entry point.
const XLF_KERNEL_64: u16 = 1;
/// The 64-bit entry point lies this far behind the start of the protected-mode kernel.
const ENTRY_64_OFFSET: u64 = 0x200;
/// Oldest boot protocol with `xloadflags`.
const PROTOCOL_2_12: u16 = 0x020c;
/// Command line length every kernel takes, for those that do not say.
const DEFAULT_CMDLINE_SIZE: u32 = 2047;
/// Highest initramfs address for kernels that do not say.
const DEFAULT_INITRD_MAX: u32 = 0x7fff_ffff;
/// Alignment of ELF kernels.
const ELF_ALIGNMENT: u32 = 0x100_0000;

/// What the first bytes of a file say about it.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    BzImage,
    Elf,
    /// Not a kernel, and perhaps why not.
    Other(&'static str),
}

/// Loads `path` into low RAM.
pub(super) fn load(ram: &Ram, path: &Path) -> Result<Kernel> {
    let mut file = open(KERNEL, path)?;
    match detect(&file) {
        Format::BzImage => load_bzimage(ram, path, &mut file),
        Format::Elf => load_elf(ram, path, &mut file),
        Format::Other(hint) => {
            Err(image_error(KERNEL, path, format!("it is neither a bzImage nor an ELF file{hint}")))
        }
    }
}

fn detect(file: &File) -> Format {
    let mut head = [0; 0x206];
    let length = (0..head.len())
        .try_fold(0, |done, _| match file.read_at(&mut head[done..], done as u64) {
            Ok(0) | Err(_) => Err(done),
            Ok(count) => Ok(done + count),
        })
        .unwrap_or_else(|done| done);
    detect_bytes(&head[..length])
}

fn detect_bytes(head: &[u8]) -> Format {
    if head.starts_with(b"\x7fELF") {
        return Format::Elf;
    }
    if head
        .get(0x1fe..0x206)
        .is_some_and(|tail| tail.starts_with(&BOOT_FLAG.to_le_bytes()) && tail[4..] == *b"HdrS")
    {
        return Format::BzImage;
    }
    Format::Other(match head {
        [0x1f, 0x8b, ..] => " (it is gzip-compressed: decompress it first)",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => " (it is zstd-compressed: decompress it first)",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => " (it is xz-compressed: decompress it first)",
        [b'M', b'Z', ..] => " (it is an EFI program without a Linux boot header)",
        [b'0', b'7', b'0', b'7', ..] => " (it is a cpio archive: give it as --initramfs)",
        _ => "",
    })
}

fn load_bzimage(ram: &Ram, path: &Path, file: &mut File) -> Result<Kernel> {
    let loaded = BzImage::load(ram, Some(GuestAddress(HIGH_RAM)), file, Some(GuestAddress(HIGH_RAM)))
        .map_err(|e| loader_error(ram, path, &e))?;
    let header = loaded.setup_header.ok_or_else(|| image_error(KERNEL, path, "it has no setup header"))?;
    let (version, flags) = (header.version, header.xloadflags);
    if version < PROTOCOL_2_12 || flags & XLF_KERNEL_64 == 0 {
        return Err(image_error(
            KERNEL,
            path,
            "it has no 64-bit entry point: give a 64-bit kernel of Linux 3.8 or later",
        ));
    }
    // The kernel moves itself to its preferred address before it decompresses, and needs init_size bytes there.
    let end =
        header.pref_address.max(HIGH_RAM).saturating_add(header.init_size.into()).max(loaded.kernel_end);
    check_room(ram, path, end)?;
    Ok(Kernel { entry: loaded.kernel_load.0 + ENTRY_64_OFFSET, end, header })
}

fn load_elf(ram: &Ram, path: &Path, file: &mut File) -> Result<Kernel> {
    let loaded =
        Elf::load(ram, None, file, Some(GuestAddress(HIGH_RAM))).map_err(|e| loader_error(ram, path, &e))?;
    check_room(ram, path, loaded.kernel_end)?;
    if !(HIGH_RAM..loaded.kernel_end).contains(&loaded.kernel_load.0) {
        return Err(image_error(KERNEL, path, "its entry point lies outside its segments"));
    }
    let header = setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        version: PROTOCOL_2_12,
        kernel_alignment: ELF_ALIGNMENT,
        cmdline_size: DEFAULT_CMDLINE_SIZE,
        initrd_addr_max: DEFAULT_INITRD_MAX,
        ..Default::default()
    };
    Ok(Kernel { entry: loaded.kernel_load.0, end: loaded.kernel_end, header })
}

fn check_room(ram: &Ram, path: &Path, end: u64) -> Result<()> {
    if fits(ram, end) { Ok(()) } else { Err(image_error(KERNEL, path, too_large(ram, end))) }
}

fn too_large(ram: &Ram, end: u64) -> String {
    format!(
        "it needs memory up to {} MiB, but there are {} MiB below 4 GiB: give a larger --memory",
        end.div_ceil(1 << 20),
        low_ram_end(ram) >> 20
    )
}

fn loader_error(ram: &Ram, path: &Path, error: &linux_loader::loader::Error) -> Error {
    use linux_loader::loader::Error as Loader;
    use linux_loader::loader::bzimage::Error as BzError;
    use linux_loader::loader::elf::Error as ElfError;
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let end = HIGH_RAM.saturating_add(size);
    let reason = match error {
        Loader::Bzimage(BzError::ReadBzImageCompressedKernel) if !fits(ram, end) => too_large(ram, end),
        Loader::Elf(ElfError::ReadKernelImage) => {
            "a segment is truncated or lies outside memory: give a larger --memory or a whole file".to_owned()
        }
        other => other.to_string(),
    };
    image_error(KERNEL, path, reason)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn ram() -> Ram {
        Ram::from_ranges(&[(GuestAddress(0), 32 << 20)]).unwrap()
    }

    fn load_bytes(bytes: &[u8]) -> Result<Kernel> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        load(&ram(), file.path())
    }

    /// A bzImage of one setup sector and 512 bytes of kernel.
    fn bzimage(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut image = vec![0; 512 * 6];
        image[0x1f1] = 4;
        image[0x1fe..0x200].copy_from_slice(&BOOT_FLAG.to_le_bytes());
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[0x211] = 1;
        image[0x214..0x218].copy_from_slice(&0x10_0000_u32.to_le_bytes());
        image[0x236] = 1;
        image[0x258..0x260].copy_from_slice(&0x100_0000_u64.to_le_bytes());
        image[0x260..0x264].copy_from_slice(&0x40_0000_u32.to_le_bytes());
        change(&mut image);
        image
    }

    fn reason(bytes: &[u8]) -> String {
        match load_bytes(bytes) {
            Err(Error::Image { reason, .. }) => reason,
            _ => panic!("accepted"),
        }
    }

    #[test]
    fn bzimage_starts_at_its_64_bit_entry_and_claims_its_working_memory() {
        let kernel = load_bytes(&bzimage(|_| ())).unwrap();
        assert_eq!((kernel.entry, kernel.end), (0x10_0200, 0x140_0000));
    }

    #[test]
    fn what_is_not_a_kernel_is_told_apart() {
        assert!(reason(b"").contains("neither"));
        assert!(reason(&[0x1f, 0x8b, 8, 0]).contains("gzip"));
        assert!(reason(b"070701").contains("--initramfs"));
        assert!(reason(b"\x7fELF\x01").starts_with("Kernel Loader") || !reason(b"\x7fELF\x01").is_empty());
    }

    #[test]
    fn kernel_without_64_bit_entry_is_refused() {
        assert!(reason(&bzimage(|image| image[0x236] = 0)).contains("64-bit"));
    }

    #[test]
    fn kernel_larger_than_memory_is_refused_with_both_sizes() {
        let text = reason(&bzimage(|image| image[0x263] = 0x10));
        assert!(text.contains("32 MiB") && text.contains("--memory"), "{text}");
    }

    #[test]
    fn directory_and_missing_file_are_image_errors() {
        for path in ["/", "/nonexistent/vmlinuz"] {
            assert!(matches!(load(&ram(), Path::new(path)), Err(Error::Image { .. })));
        }
    }
}
