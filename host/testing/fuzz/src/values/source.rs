//! Values of the contract, made of the bytes of an input. Many texts and numbers are at the contract's limits,
//! which bytes alone would seldom reach.

use arbitrary::{Result, Unstructured};
use cofferdam_domain::storage::PageRequest;
use cofferdam_wasm::fuzzing::contract::{
    CapacityReport, Condition, ConnectionInfo, Description, ErrorKind, ExpandResponse, Finality,
    GroupSnapshot, Owner, Placement, Readiness, ReclaimPolicy, Snapshot, SnapshotOwner, SnapshotPage,
    StorageError, Validation, Volume, VolumePage, VolumeStatus,
};

/// The secret of the call.
pub(super) const SECRET: &str = "hunter2 hunter2";

const TEXTS: [&str; 25] = [
    "v",
    "a",
    "",
    "memory.cofferdam.dev",
    "directory",
    "topology.example.com/zone",
    "cofferdam.dev/connection-info",
    "path",
    "vol-1",
    "csi-0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
    "csi-0F",
    "a\nb",
    "\u{1b}[2J",
    "\u{202e}",
    "é",
    "\u{10fffd}",
    "a/b",
    "/",
    "-",
    ".",
    "A_b",
    "publish-readonly",
    // The secret in Base64, in hexadecimal, and with a line break.
    "aHVudGVyMiBodW50ZXIy",
    "68756e746572322068756e74657232",
    "hunter2\nhunter2",
];
/// Lengths around the limits of texts.
const LENGTHS: [usize; 12] = [62, 63, 64, 127, 128, 129, 253, 254, 256, 257, 1_001, 4_097];
const NUMBERS: [u64; 6] = [0, 1, 10, (1 << 63) - 1, 1 << 63, u64::MAX];
const KINDS: [ErrorKind; 16] = [
    ErrorKind::InvalidArgument,
    ErrorKind::NotFound,
    ErrorKind::AlreadyExists,
    ErrorKind::PermissionDenied,
    ErrorKind::Unauthenticated,
    ErrorKind::ResourceExhausted,
    ErrorKind::FailedPrecondition,
    ErrorKind::Aborted,
    ErrorKind::OutOfRange,
    ErrorKind::Unimplemented,
    ErrorKind::Internal,
    ErrorKind::Unavailable,
    ErrorKind::DeadlineExceeded,
    ErrorKind::Cancelled,
    ErrorKind::DataLoss,
    ErrorKind::Unknown,
];

type Pairs = Vec<(String, String)>;

/// The rest of an input.
pub(super) struct Source<'a>(Unstructured<'a>);

impl<'a> Source<'a> {
    pub(super) fn new(bytes: Unstructured<'a>) -> Self {
        Self(bytes)
    }

    /// A number below `count`.
    pub(super) fn choice(&mut self, count: u8) -> Result<u8> {
        self.0.int_in_range(0..=count.saturating_sub(1))
    }

    fn bool(&mut self) -> Result<bool> {
        self.0.arbitrary()
    }

    fn number(&mut self) -> Result<u64> {
        if self.bool()? { self.0.choose(&NUMBERS).copied() } else { self.0.arbitrary() }
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { make(self).map(Some) } else { Ok(None) }
    }

    fn text(&mut self) -> Result<String> {
        Ok(match self.choice(8)? {
            0..4 => (*self.0.choose(&TEXTS)?).to_owned(),
            4 => {
                let c = *self.0.choose(&['x', 'é', '"', '\u{e000}'])?;
                let bytes = *self.0.choose(&LENGTHS)?;
                let mut text = c.to_string().repeat(bytes / c.len_utf8());
                text.extend((text.len()..bytes).map(|_| 'x'));
                text
            }
            5 => format!("{}{SECRET}{}", self.0.choose(&TEXTS)?, self.0.choose(&TEXTS)?),
            _ => self.0.arbitrary::<&str>()?.to_owned(),
        })
    }

    /// The ID of an object.
    pub(super) fn handle(&mut self) -> Result<String> {
        if self.bool()? { Ok("v".to_owned()) } else { self.text() }
    }

    /// Some items, or as many as a limit permits, or one more. `nth` makes one of many items from its number.
    fn list<T>(
        &mut self,
        limit: usize,
        mut make: impl FnMut(&mut Self) -> Result<T>,
        nth: impl FnMut(usize) -> T,
    ) -> Result<Vec<T>> {
        match self.choice(16)? {
            14 => Ok((0..limit).map(nth).collect()),
            15 => Ok((0..=limit).map(nth).collect()),
            count => (0..count / 3).map(|_| make(self)).collect(),
        }
    }

    fn pairs(&mut self) -> Result<Pairs> {
        self.list(
            64,
            |source| Ok((source.text()?, source.text()?)),
            |number| (format!("k{number}"), String::new()),
        )
    }

    fn names(&mut self) -> Result<Vec<String>> {
        self.list(64, Self::text, |number| format!("k{number}"))
    }

    pub(super) fn connection_info(&mut self) -> Result<ConnectionInfo> {
        let kind = if self.bool()? { "directory".to_owned() } else { self.text()? };
        Ok(ConnectionInfo { kind, version: self.0.arbitrary()?, fields: self.pairs()? })
    }

    pub(super) fn volume(&mut self) -> Result<Volume> {
        Ok(Volume {
            handle: self.handle()?,
            capacity_bytes: self.option(Self::number)?,
            context: self.pairs()?,
            topology: self.list(1_024, Self::pairs, |_| vec![("k".to_owned(), "v".to_owned())])?,
            connection_info: self.option(Self::connection_info)?,
        })
    }

    fn policy(&mut self) -> Result<ReclaimPolicy> {
        Ok(if self.bool()? { ReclaimPolicy::Delete } else { ReclaimPolicy::Retain })
    }

    pub(super) fn status(&mut self) -> Result<VolumeStatus> {
        Ok(VolumeStatus {
            volume: self.volume()?,
            owner: self.option(|source| {
                Ok(Owner {
                    cluster_id: source.text()?,
                    claim_uid: source.text()?,
                    pv_name: source.text()?,
                    reclaim_policy: source.policy()?,
                })
            })?,
            published_nodes: self.list(10_000, Self::text, |number| number.to_string())?,
            condition: self
                .option(|source| Ok(Condition { abnormal: source.bool()?, message: source.text()? }))?,
            changed_at_ms: self.option(Self::number)?,
        })
    }

    pub(super) fn volume_page(&mut self) -> Result<VolumePage> {
        let count = self.choice(4)?;
        let volumes = (0..count).map(|_| self.status()).collect::<Result<_>>()?;
        Ok(VolumePage { volumes, next: self.option(Self::text)? })
    }

    pub(super) fn page_request(&mut self) -> Result<PageRequest> {
        Ok(PageRequest {
            starting_token: self.option(Self::text)?,
            max_entries: self.option(|source| Ok(source.choice(4)?.into()))?,
        })
    }

    pub(super) fn snapshot(&mut self) -> Result<Snapshot> {
        Ok(Snapshot {
            handle: self.handle()?,
            source: self.handle()?,
            size_bytes: self.option(Self::number)?,
            created_at_ms: self.number()?,
            ready: self.bool()?,
            group: self.option(Self::handle)?,
            owner: self.option(|source| {
                Ok(SnapshotOwner {
                    cluster_id: source.text()?,
                    snapshot_uid: source.text()?,
                    content_name: source.text()?,
                    reclaim_policy: source.policy()?,
                })
            })?,
        })
    }

    pub(super) fn snapshot_page(&mut self) -> Result<SnapshotPage> {
        let count = self.choice(4)?;
        let snapshots = (0..count).map(|_| self.snapshot()).collect::<Result<_>>()?;
        Ok(SnapshotPage { snapshots, next: self.option(Self::text)? })
    }

    pub(super) fn group(&mut self) -> Result<GroupSnapshot> {
        let count = self.choice(4)?;
        Ok(GroupSnapshot {
            handle: self.handle()?,
            snapshots: (0..count).map(|_| self.snapshot()).collect::<Result<_>>()?,
            created_at_ms: self.number()?,
            ready: self.bool()?,
        })
    }

    pub(super) fn expanded(&mut self) -> Result<ExpandResponse> {
        Ok(ExpandResponse { capacity_bytes: self.number()?, node_expansion: self.bool()? })
    }

    pub(super) fn capacity(&mut self) -> Result<CapacityReport> {
        Ok(CapacityReport {
            available_bytes: self.number()?,
            maximum_volume_bytes: self.option(Self::number)?,
            minimum_volume_bytes: self.option(Self::number)?,
        })
    }

    pub(super) fn description(&mut self) -> Result<Description> {
        Ok(Description {
            name: if self.bool()? { "memory.cofferdam.dev".to_owned() } else { self.text()? },
            version: self.handle()?,
            topology_keys: self.names()?,
            placement: if self.bool()? { Placement::Central } else { Placement::Node },
            volumes_per_node: self.option(|source| Ok(source.choice(4)?.into()))?,
            features: self.names()?,
        })
    }

    pub(super) fn readiness(&mut self) -> Result<Readiness> {
        Ok(self.option(Self::text)?.map_or(Readiness::Ready, Readiness::NotReady))
    }

    pub(super) fn validation(&mut self) -> Result<Validation> {
        Ok(self.option(Self::text)?.map_or(Validation::Confirmed, Validation::Refused))
    }

    pub(super) fn error(&mut self) -> Result<StorageError> {
        Ok(StorageError {
            kind: *self.0.choose(&KINDS)?,
            message: self.text()?,
            retry_after_ms: self.option(Self::number)?,
            finality: *self.0.choose(&[Finality::Final, Finality::InProgress, Finality::Unknown])?,
        })
    }
}
