//! Frames as pcapng blocks in memory.

use std::borrow::Cow;
use std::fmt;
use std::io::IoSlice;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

use super::Direction;

/// `if_tsresol`: units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// More than the fixed parts, padding and options of a packet block take.
const PACKET_OVERHEAD: usize = 96;

/// Encodes blocks into a buffer that its owner empties from time to time.
pub(super) struct Encoder {
    blocks: PcapNgWriter<Vec<u8>>,
    /// Where frames in several parts are put together.
    scratch: Vec<u8>,
}

impl Encoder {
    /// An encoder whose buffer holds the section header.
    pub(super) fn new() -> Result<Self, PcapError> {
        let application = Cow::Borrowed(concat!("Verbena ", env!("CARGO_PKG_VERSION")));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(application)],
            ..SectionHeaderBlock::default()
        };
        let blocks = PcapNgWriter::with_section_header(Vec::new(), section)?;
        Ok(Self { blocks, scratch: Vec::new() })
    }

    /// Whole blocks that have not been taken yet.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        self.blocks.get_mut()
    }

    /// Bytes a frame takes in the file, at most.
    pub(super) fn cost(parts: &[IoSlice<'_>]) -> usize {
        parts.iter().map(|part| part.len()).sum::<usize>() + PACKET_OVERHEAD
    }

    /// Adds an interface description; interfaces are numbered from zero in this order.
    pub(super) fn interface(&mut self, name: &str, description: &str) -> Result<(), PcapError> {
        let options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfDescription(description.into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        self.blocks.write_pcapng_block(block).map(drop)
    }

    /// Adds a frame. `time` counts from 1970; `left_out` frames of the interface are missing just before it.
    pub(super) fn packet(
        &mut self,
        interface_id: u32,
        direction: Direction,
        time: Duration,
        left_out: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), PcapError> {
        self.scratch.clear();
        parts.iter().for_each(|part| self.scratch.extend_from_slice(part));
        let mut options = vec![EnhancedPacketOption::Flags(direction as u32)];
        if left_out > 0 {
            options.push(EnhancedPacketOption::DropCount(left_out));
        }
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: time,
            original_len: u32::try_from(self.scratch.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.scratch),
            options,
        };
        self.blocks.write_block(&block.into_block()).map(drop)
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("buffered", &self.blocks.get_ref().len()).finish_non_exhaustive()
    }
}
