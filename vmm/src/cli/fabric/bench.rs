//! How fast a disk at a target is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use virtio_fabric::OperationCounts;
use virtio_fabric::initiator::Token;

use super::Common;
use super::disk::{RemoteDisk, Request, SECTOR};
use crate::config::values::ByteSize;
use crate::error::{Error, Exit, Result};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    Read,
    Write,
    Randread,
    Randwrite,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Bench {
    #[command(flatten)]
    common: Common,

    /// What to do; writes destroy what is on the disk and need --overwrite
    #[arg(long, value_enum, default_value = "randread")]
    rw: Pattern,

    /// Bytes of a request, a multiple of 512
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block_size: ByteSize,

    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,

    /// Queues
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,

    /// How long
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,

    /// Yes, what is on the disk may be lost
    #[arg(long)]
    overwrite: bool,
}

impl Bench {
    pub(super) fn run(self) -> Result<Exit> {
        let writes = matches!(self.rw, Pattern::Write | Pattern::Randwrite);
        if writes && !self.overwrite {
            return Err(Error::Usage(
                "Writing destroys what is on the disk: say --overwrite if that is right".to_owned(),
            ));
        }
        let mut disk = RemoteDisk::connect(&self.common, self.queues)?;
        disk.check_disk()?;
        let block = self.block_size.0;
        let blocks = disk.size().checked_div(block).unwrap_or(0);
        if block == 0 || !block.is_multiple_of(SECTOR) || block > disk.max_request() || blocks == 0 {
            return Err(Error::Usage(format!(
                "A block size of {} is not possible: give a multiple of 512 up to {} that fits on the disk",
                self.block_size,
                disk.max_request()
            )));
        }
        let before = disk.counts();
        let mut latencies = self.load(&mut disk, blocks, writes)?;
        latencies.1.sort_unstable();
        let mut text = self.report(latencies.0, &latencies.1);
        if let Some((after, before)) = disk.counts().zip(before) {
            text.push_str(&operations(after, before, latencies.1.len()));
        }
        super::super::write_out(&text)
    }

    /// Keeps the disk busy; how long it took, and how long each request.
    fn load(&self, disk: &mut RemoteDisk, blocks: u64, writes: bool) -> Result<(Duration, Vec<Duration>)> {
        let block = self.block_size.0;
        let data = Bytes::from(vec![0x5a; if writes { block as usize } else { 0 }]);
        let random = matches!(self.rw, Pattern::Randread | Pattern::Randwrite);
        let limit = Duration::from_secs(self.seconds);
        let start = Instant::now();
        let mut under_way: BTreeMap<Token, Instant> = BTreeMap::new();
        let (mut done, mut number, mut state) = (Vec::new(), 0_u64, 0x2545_f491_4f6c_dd1d_u64);
        loop {
            let over = start.elapsed() >= limit;
            if over && under_way.is_empty() {
                return Ok((start.elapsed(), done));
            }
            while !over && under_way.len() < usize::from(self.depth) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let offset = if random { state } else { number } % blocks * block;
                number += 1;
                let request = match writes {
                    true => Request::Write { offset, data: data.clone() },
                    false => Request::Read { offset, length: block as u32 },
                };
                under_way.insert(disk.submit(request)?, Instant::now());
            }
            disk.step()?;
            while let Some((token, result)) = disk.finished() {
                result?;
                done.extend(under_way.remove(&token).map(|since| since.elapsed()));
            }
        }
    }

    fn report(&self, time: Duration, latencies: &[Duration]) -> String {
        let seconds = time.as_secs_f64();
        let count = latencies.len();
        let rate = count as f64 / seconds;
        let bytes = rate * self.block_size.0 as f64 / (1 << 20) as f64;
        let at = |share: f64| {
            let index = (count as f64 * share) as usize;
            latencies.get(index.min(count.saturating_sub(1))).map_or(0, Duration::as_micros)
        };
        format!(
            "{:?} {} depth {} queues {}: {count} requests in {seconds:.2} s, {rate:.0} a second, {bytes:.1} MiB/s; \
             latency median {} µs, 99 % {} µs, worst {} µs\n",
            self.rw,
            self.block_size,
            self.depth,
            self.queues,
            at(0.5),
            at(0.99),
            at(1.0)
        )
    }
}

/// What this side did for each request.
fn operations(after: OperationCounts, before: OperationCounts, requests: usize) -> String {
    let each = |after: u64, before: u64| (after - before) as f64 / requests.max(1) as f64;
    format!(
        "for each request: {:.2} messages sent, {:.2} received, {:.2} keys named\n",
        each(after.sends, before.sends),
        each(after.received, before.received),
        each(after.keys, before.keys)
    )
}
