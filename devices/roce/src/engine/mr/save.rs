//! Memory regions as they are saved.

use serde::{Deserialize, Serialize};
use verbs::{Access, Error, MrId, PdId};

use super::{Memory, Mr, MrTable, Permutation};
use crate::engine::ram;

#[derive(Debug, Serialize, Deserialize)]
struct MrState {
    id: MrId,
    key: u32,
    pd: PdId,
    iova: u64,
    length: u64,
    access: Access,
    memory: Memory,
}

/// All memory regions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MrsState {
    /// By which keys lead to regions; with it a destination gives the same keys.
    secret: u64,
    created: u32,
    regions: Vec<MrState>,
}

impl MrsState {
    pub(crate) fn of(table: &MrTable, secret: u64) -> Self {
        let regions = table.regions.iter().map(|(id, mr)| {
            // Whether neighbouring pages lie in different regions of RAM is for the destination to find out.
            let Mr { key, pd, iova, length, access, memory, straddles: _ } = mr;
            MrState {
                id: MrId(id),
                key: *key,
                pd: *pd,
                iova: *iova,
                length: *length,
                access: *access,
                memory: memory.clone(),
            }
        });
        Self { secret, created: table.created, regions: regions.collect() }
    }

    pub(crate) const fn secret(&self) -> u64 {
        self.secret
    }

    /// Restores the regions into an empty table, and counts each as a user of its protection domain.
    pub(crate) fn restore(
        self,
        table: &mut MrTable,
        mut used: impl FnMut(PdId) -> Result<(), Error>,
    ) -> Result<(), Error> {
        table.secret = Permutation::new(self.secret);
        table.created = self.created;
        for region in self.regions {
            used(region.pd)?;
            table.adopt(region)?;
        }
        Ok(())
    }
}

impl MrTable {
    fn adopt(&mut self, state: MrState) -> Result<(), Error> {
        let MrState { id, key, pd, iova, length, access, memory } = state;
        if self.id_of(key) != id.0 {
            return Err(Error::Invalid("key does not lead to its region"));
        }
        if let Memory::Pages(pages) | Memory::Fast { pages: Some(pages), .. } = &memory {
            iova.checked_add(length).ok_or(Error::Invalid("region wraps the address space"))?;
            let capacity = u64::from(pages.pages()).saturating_mul(pages.page_size());
            let used = (iova & (pages.page_size() - 1)).checked_add(length);
            if used.is_none_or(|used| used > capacity) {
                return Err(Error::Invalid("region is longer than its pages"));
            }
        }
        let straddles = match &memory {
            Memory::Pages(pages) | Memory::Fast { pages: Some(pages), .. } => {
                ram::straddles(&*self.ram, pages)
            }
            Memory::Fast { pages: None, .. } | Memory::Dma => false,
        };
        self.regions.insert(id.0, Mr { key, pd, iova, length, access, memory, straddles })
    }
}
