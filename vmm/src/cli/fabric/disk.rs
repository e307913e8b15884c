//! A disk at a target, for commands that may wait.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_RO, VIRTIO_BLK_S_OK, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_fabric::initiator::{Filled, Output, SubmitError, Token};
use virtio_fabric::wire::{Features, Status};
use virtio_fabric::{Client, OperationCounts};

use super::Common;
use crate::error::{Error, Result};
use crate::fabric::{client_config, via};

/// Bytes of a sector.
pub(super) const SECTOR: u64 = 512;
/// How long a wait may be before the clock is looked at.
const WAIT: Duration = Duration::from_secs(1);

/// A device at a target. Most of what can be done with it needs a disk.
pub(super) struct RemoteDisk {
    client: Client,
    url: String,
    device: u32,
    features: u64,
    config: Vec<u8>,
    next_queue: u16,
    done: BTreeMap<Token, std::result::Result<Filled, Status>>,
}

/// What a disk is asked for.
pub(super) enum Request {
    Read { offset: u64, length: u32 },
    Write { offset: u64, data: Bytes },
    Flush,
}

impl RemoteDisk {
    /// Connects, with up to `queues` queues.
    pub(super) fn connect(common: &Common, queues: u16) -> Result<Self> {
        let url = common.url.clone().with_device()?;
        let mut config = client_config(&url, queues, Duration::from_secs(common.timeout))?;
        config.repeatable = true;
        if common.digest {
            config.features |= Features::DIGEST;
        }
        let via = via(&url, common.net.as_ref())?;
        let client =
            Client::new(config, via, url.addresses()?).map_err(|e| Error::io("set up a connection", e))?;
        let mut disk = Self {
            client,
            url: url.to_string(),
            device: 0,
            features: 0,
            config: Vec::new(),
            next_queue: 0,
            done: BTreeMap::new(),
        };
        while disk.device == 0 {
            disk.step()?;
        }
        Ok(disk)
    }

    pub(super) fn device(&self) -> u32 {
        self.device
    }

    pub(super) fn features(&self) -> u64 {
        self.features
    }

    pub(super) fn queue_sizes(&self) -> Vec<u16> {
        self.client.queue_sizes()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.features & 1 << VIRTIO_BLK_F_RO != 0
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.config.first_chunk().map_or(0, |sectors| u64::from_le_bytes(*sectors)).saturating_mul(SECTOR)
    }

    /// What was done by RDMA.
    pub(super) fn counts(&self) -> Option<OperationCounts> {
        self.client.counts()
    }

    /// Most bytes of a read or write.
    pub(super) fn max_request(&self) -> u64 {
        let overhead = SECTOR;
        (u64::from(self.client.max_xfer()) - overhead) / SECTOR * SECTOR
    }

    /// Refuses what is no disk.
    pub(super) fn check_disk(&self) -> Result<()> {
        if self.device == VIRTIO_ID_BLOCK {
            return Ok(());
        }
        Err(Error::Usage(format!("{} is no disk", self.url)))
    }

    /// Submits a request; [`RemoteDisk::finished`] has its end.
    pub(super) fn submit(&mut self, request: Request) -> Result<Token> {
        let (kind, offset, data, in_length) = match request {
            Request::Read { offset, length } => (VIRTIO_BLK_T_IN, offset, Bytes::new(), length + 1),
            Request::Write { offset, data } => (VIRTIO_BLK_T_OUT, offset, data, 1),
            Request::Flush => (VIRTIO_BLK_T_FLUSH, 0, Bytes::new(), 1),
        };
        let mut out = Vec::with_capacity(16 + data.len());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(offset / SECTOR).to_le_bytes());
        out.extend_from_slice(&data);
        let queues = self.client.queue_sizes().len().max(1) as u16;
        self.next_queue = (self.next_queue + 1) % queues;
        let submitted = self.client.submit(self.next_queue, out.into(), in_length);
        submitted.map_err(|error: SubmitError| Error::Failure(error.to_string()))
    }

    /// Sends what was submitted and waits until something has happened.
    pub(super) fn step(&mut self) -> Result<()> {
        let failed = |e| Error::io("wait for the target", e);
        self.client.settle();
        self.client.wait(WAIT).map_err(failed)?;
        self.client.run().map_err(failed)?;
        while let Some(event) = self.client.event() {
            match event {
                Output::Completed(token, result) => {
                    self.done.insert(token, result);
                }
                Output::Config(config) => self.config = config,
                Output::Ready { device, features, .. } => (self.device, self.features) = (device, features),
                Output::Closed(status) => return Err(self.closed(status)),
                _ => {}
            }
        }
        Ok(())
    }

    /// A request that has ended: its number, and the bytes of a read.
    pub(super) fn finished(&mut self) -> Option<(Token, Result<Bytes>)> {
        let (token, result) = self.done.pop_first()?;
        Some((token, self.judge(result)))
    }

    /// Carries out one request.
    pub(super) fn execute(&mut self, request: Request) -> Result<Bytes> {
        let token = self.submit(request)?;
        loop {
            if let Some(result) = self.done.remove(&token) {
                return self.judge(result);
            }
            self.step()?;
        }
    }

    fn judge(&self, result: std::result::Result<Filled, Status>) -> Result<Bytes> {
        let mut filled =
            result.map_err(|status| Error::Failure(format!("{}: request failed: {status:?}", self.url)))?;
        if filled.tail.is_empty() && !filled.data.is_empty() {
            filled.tail = filled.data.split_off(filled.data.len() - 1);
        } else if filled.tail.len() > 1 {
            // Some of what was read has come in the completion.
            let (rest, status) = filled.tail.split_at(filled.tail.len() - 1);
            filled.data = [&filled.data, rest].concat().into();
            filled.tail = Bytes::copy_from_slice(status);
        }
        match filled.tail.last() {
            Some(status) if u32::from(*status) == VIRTIO_BLK_S_OK => Ok(filled.data),
            status => {
                Err(Error::Failure(format!("{}: the disk reports an error (status {status:?})", self.url)))
            }
        }
    }

    fn closed(&self, status: Status) -> Error {
        let why = match (status, self.client.trouble()) {
            (Status::Stale, Some(trouble)) => trouble.to_owned(),
            (Status::NoTarget, _) => "it exports no device of that name".to_owned(),
            (status, _) => format!("{status:?}"),
        };
        Error::Failure(format!("Cannot use {}: {why}", self.url))
    }
}

impl Drop for RemoteDisk {
    fn drop(&mut self) {
        self.client.shutdown();
    }
}
