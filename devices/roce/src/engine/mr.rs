//! Memory regions: from keys and addresses to guest memory.

mod save;

use serde::{Deserialize, Serialize};
use verbs::{Access, Error, FastReg, Keys, MrId, MrInit, MrKind, PageList, PdId, Segment, Segments};

use super::keys::Permutation;
use super::ram::{self, RamMap};
use super::table::Table;
pub(super) use save::MrsState;

/// Bits of a key's index that number the region; the rest counts re-use of the number.
const ID_BITS: u32 = 17;
/// Most memory regions.
pub(crate) const MAX_MR: u32 = 1 << ID_BITS;

/// A key does not grant what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// What stands behind a region.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Memory {
    Pages(PageList),
    Dma,
    /// A fast-registration region, with pages while it is registered.
    Fast {
        max_pages: u32,
        pages: Option<PageList>,
    },
}

#[derive(Debug)]
struct Mr {
    key: u32,
    pd: PdId,
    iova: u64,
    length: u64,
    access: Access,
    memory: Memory,
    /// Neighbouring pages may lie in different regions of RAM, so that no access reaches both.
    straddles: bool,
}

/// All memory regions of a device.
pub(crate) struct MrTable {
    regions: Table<Mr>,
    secret: Permutation,
    created: u32,
    ram: Box<dyn RamMap>,
}

impl MrTable {
    pub(crate) fn new(secret: u64, ram: Box<dyn RamMap>) -> Self {
        Self { regions: Table::new(MAX_MR), secret: Permutation::new(secret), created: 0, ram }
    }

    pub(crate) fn register(&mut self, mr: MrId, init: MrInit) -> Result<Keys, Error> {
        check(&init)?;
        self.regions.check_free(mr.0)?;
        self.created = self.created.wrapping_add(1);
        let generation = self.created % (1 << (24 - ID_BITS));
        let index = self.secret.hide(generation << ID_BITS | mr.0);
        let variant = (self.secret.hide(index) ^ self.created) & 0xff;
        let key = index << 8 | variant;
        let straddles = matches!(&init.kind, MrKind::Pages(pages) if ram::straddles(&*self.ram, pages));
        let memory = match init.kind {
            MrKind::Pages(pages) => Memory::Pages(pages),
            MrKind::Dma => Memory::Dma,
            MrKind::FastReg { max_pages } => Memory::Fast { max_pages, pages: None },
        };
        let MrInit { pd, iova, length, access, .. } = init;
        self.regions.insert(mr.0, Mr { key, pd, iova, length, access, memory, straddles })?;
        Ok(Keys { lkey: key, rkey: key })
    }

    pub(crate) fn deregister(&mut self, mr: MrId) -> Result<PdId, Error> {
        self.regions.remove(mr.0).map(|mr| mr.pd).ok_or(Error::NotFound)
    }

    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    fn id_of(&self, key: u32) -> u32 {
        self.secret.reveal(key >> 8) & (MAX_MR - 1)
    }

    /// The region of a key, whatever its variant byte.
    fn by_index(&mut self, key: u32, pd: PdId) -> Result<&mut Mr, Denied> {
        let id = self.id_of(key);
        self.regions.get_mut(id).filter(|mr| mr.key >> 8 == key >> 8 && mr.pd == pd).ok_or(Denied)
    }

    fn granted(&self, key: u32, pd: PdId, addr: u64, len: u32, access: Access) -> Result<&Mr, Denied> {
        let mr = self.regions.get(self.id_of(key)).ok_or(Denied)?;
        let allowed = mr.key == key && mr.pd == pd && mr.access.contains(access);
        if allowed && mr.covers(addr, len) { Ok(mr) } else { Err(Denied) }
    }

    /// Whether `key` grants `access` to `len` bytes at `addr` within `pd`.
    pub(crate) fn check(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u32,
        access: Access,
    ) -> Result<(), Denied> {
        let mr = self.granted(key, pd, addr, len, access)?;
        match mr.memory {
            Memory::Dma => ram::reach(&*self.ram, Segment { gpa: addr, len }, |_| {}),
            _ => Ok(()),
        }
    }

    /// Appends the guest memory behind a range that `key` grants `access` to.
    pub(crate) fn resolve(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u32,
        access: Access,
        out: &mut Segments,
    ) -> Result<(), Denied> {
        let mr = self.granted(key, pd, addr, len, access)?;
        let pages = match &mr.memory {
            Memory::Dma => {
                return ram::reach(&*self.ram, Segment { gpa: addr, len }, |part| out.push(part));
            }
            Memory::Pages(pages) | Memory::Fast { pages: Some(pages), .. } => pages,
            Memory::Fast { pages: None, .. } => return Err(Denied),
        };
        let offset = (mr.iova & (pages.page_size() - 1)) + (addr - mr.iova);
        if !mr.straddles {
            return if pages.resolve(offset, len, out) { Ok(()) } else { Err(Denied) };
        }
        let mut joined = Segments::new();
        if !pages.resolve(offset, len, &mut joined) {
            return Err(Denied);
        }
        joined.into_iter().try_for_each(|segment| ram::reach(&*self.ram, segment, |part| out.push(part)))
    }

    /// Gives pages to a fast-registration region.
    pub(crate) fn fast_register(&mut self, pd: PdId, reg: FastReg) -> Result<(), Denied> {
        let straddles = ram::straddles(&*self.ram, &reg.pages);
        let mr = self.by_index(reg.key, pd)?;
        let Memory::Fast { max_pages, pages: pages @ None } = &mut mr.memory else { return Err(Denied) };
        let (size, length) = (reg.pages.page_size(), u64::from(reg.length));
        let capacity = u64::from(reg.pages.pages()).saturating_mul(size);
        let used = (reg.iova & (size - 1)).checked_add(length);
        if reg.pages.pages() > *max_pages || used.is_none_or(|used| used > capacity) {
            return Err(Denied);
        }
        reg.iova.checked_add(length).ok_or(Denied)?;
        mr.straddles = straddles;
        *pages = Some(reg.pages);
        (mr.key, mr.iova, mr.length, mr.access) = (reg.key, reg.iova, length, reg.access);
        Ok(())
    }

    /// Takes the pages of a fast-registration region away again.
    pub(crate) fn invalidate(&mut self, pd: PdId, key: u32) -> Result<(), Denied> {
        let mr = self.by_index(key, pd)?;
        match &mut mr.memory {
            Memory::Fast { pages, .. } if mr.key == key && pages.is_some() => {
                *pages = None;
                Ok(())
            }
            _ => Err(Denied),
        }
    }
}

impl Mr {
    fn covers(&self, addr: u64, len: u32) -> bool {
        match &self.memory {
            Memory::Dma => addr.checked_add(u64::from(len)).is_some(),
            Memory::Fast { pages: None, .. } => false,
            Memory::Pages(_) | Memory::Fast { .. } => addr
                .checked_sub(self.iova)
                .and_then(|offset| offset.checked_add(u64::from(len)))
                .is_some_and(|end| end <= self.length),
        }
    }
}

/// Checks that a region makes sense in itself.
fn check(init: &MrInit) -> Result<(), Error> {
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if init.access.intersects(remote_writes) && !init.access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid("remote write access needs local write access"));
    }
    let MrKind::Pages(pages) = &init.kind else { return Ok(()) };
    init.iova.checked_add(init.length).ok_or(Error::Invalid("region wraps the address space"))?;
    let capacity = u64::from(pages.pages()).saturating_mul(pages.page_size());
    let used = (init.iova & (pages.page_size() - 1)).checked_add(init.length);
    match used {
        Some(used) if used <= capacity => Ok(()),
        _ => Err(Error::Invalid("region is longer than its pages")),
    }
}
