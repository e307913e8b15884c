//! From a guest-physical address to the BAR behind it.

use std::sync::Arc;

use crate::function::Function;

/// A decoded BAR.
struct Region {
    base: u64,
    size: u64,
    bar: u8,
    function: Arc<Function>,
}

/// A BAR that an access hits.
pub(crate) struct Hit<'a> {
    pub(crate) function: &'a Function,
    pub(crate) bar: u8,
    pub(crate) offset: u64,
    /// Bytes from `offset` to the end of the BAR; at least 1.
    pub(crate) room: u64,
}

/// All decoded BARs, sorted by address. Of BARs that a guest made overlap, the one that starts last is found.
#[derive(Default)]
pub(crate) struct DecodeTable(Vec<Region>);

impl DecodeTable {
    pub(crate) fn new<'a>(functions: impl Iterator<Item = &'a Arc<Function>>) -> Self {
        let mut regions: Vec<_> = functions
            .flat_map(|function| {
                function.bars().into_iter().filter_map(|(bar, base)| {
                    let function = Arc::clone(function);
                    Some(Region { base: base?, size: bar.size, bar: bar.index, function })
                })
            })
            .collect();
        regions.sort_by_key(|region| region.base);
        Self(regions)
    }

    pub(crate) fn find(&self, address: u64) -> Option<Hit<'_>> {
        let after = self.0.partition_point(|region| region.base <= address);
        let region = self.0.get(after.checked_sub(1)?)?;
        let offset = address - region.base;
        let room = region.size.checked_sub(offset).filter(|room| *room > 0)?;
        Some(Hit { function: &region.function, bar: region.bar, offset, room })
    }
}
