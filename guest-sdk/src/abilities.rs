//! Optional abilities of a [`Backend`](crate::Backend): one trait for each optional interface of the
//! contract.
//!
//! Implement the traits of the abilities that the storage supports, and name their interfaces in
//! [`export!`](crate::export). Cofferdam announces the CSI capabilities of the exported interfaces.
//! [`Restoring`] has no capability in CSI.
//!
//! The functions have no default because every result is a statement about the storage. The only exception is
//! [`Snapshots::get_snapshot`], whose documentation describes the default.
//!
//! Besides the errors that are listed at a function, the function returns failures of the storage, such as
//! [`unavailable`](crate::StorageError::unavailable).
//!
//! The examples run on a [mock host](crate::mock). Their storage is an array at `http://array`; that of
//! [`Snapshots`] is the import `state`.

pub use crate::bindings::{
    capacity::exports::cofferdam::storage::capacity::{CapacityReport, CapacityRequest},
    expansion::exports::cofferdam::storage::expansion::{ExpandRequest, ExpandResponse},
    group_snapshots::exports::cofferdam::storage::group_snapshots::{GroupRequest, GroupSnapshot},
    listing::exports::cofferdam::storage::listing::VolumePage,
    publishing::exports::cofferdam::storage::publishing::PublishRequest,
    snapshots::exports::cofferdam::storage::snapshots::{SnapshotPage, SnapshotRequest},
};
use crate::{
    ConnectionInfo, CreateRequest, KeyValues, Result, Snapshot, SnapshotHandle, StorageError, Volume,
    VolumeHandle, VolumeStatus, backend::Component, bindings,
};

impl PublishRequest {
    /// A name of the node: its `provider-id`, `iscsi-initiator`, `nvme-host`, `fc-port` or `address`. Several
    /// names of a kind are separated by commas. `None` if the host knows none.
    ///
    /// ```
    /// use cofferdam_guest::abilities::PublishRequest;
    ///
    /// /// The last part of a provider ID is the instance: `aws:///us-east-1a/i-0abc`.
    /// fn instance(request: &PublishRequest) -> Option<&str> {
    ///     request.node_identity("provider-id")?.rsplit('/').next()
    /// }
    /// ```
    pub fn node_identity(&self, kind: &str) -> Option<&str> {
        let found = self.node_identities.iter().find(|(name, _)| name == kind);
        found.map(|(_, value)| value.as_str())
    }
}

/// Creation of volumes from other volumes (CSI `CLONE_VOLUME`).
///
/// ```
/// use cofferdam_guest::{
///     CreateRequest, ErrorKind, Result, StorageError, Volume, abilities::Cloning, handle,
///     http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// impl Cloning for MyArray {
///     fn create_from_volume(request: CreateRequest, source: String) -> Result<Volume> {
///         let handle = handle::from_name("vol", &request.name);
///         let url = http::url("http://array", &["volumes", &handle])?;
///         let response = Request::put(url).query("content-of", &source).send()?;
///         let made = response.ok_or(|response| match response.status {
///             404 => Some(StorageError::not_found(format!("there is no volume {source:?}"))),
///             _ => None,
///         })?;
///         Ok(Volume::new(handle, made.json()?))
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Put, "http://array/volumes/", |_| Ok(Response::new(404)))
///     .on(Method::Put, "http://array/volumes/vol-b?content-of=vol-a", |_| {
///         Ok(Response::new(201).with_body("4096"))
///     })
///     .install();
/// let clone = |source: &str| MyArray::create_from_volume(CreateRequest::new("b", 4096), source.to_owned());
/// assert_eq!(clone("vol-a").unwrap().capacity_bytes, Some(4096));
/// assert_eq!(clone("vol-x").unwrap_err().kind, ErrorKind::NotFound);
/// ```
pub trait Cloning {
    /// Creates a volume with the content of the volume `source`, or returns the volume that an earlier
    /// identical call created.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the source does not exist.
    /// - [`out_of_range`](crate::StorageError::out_of_range) if the requested size is smaller than the source
    ///   volume.
    /// - The errors of [`Backend::create_volume`](crate::Backend::create_volume).
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume>;
}

impl<B: Cloning> bindings::cloning::exports::cofferdam::storage::cloning::Guest for Component<B> {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        <B as Cloning>::create_from_volume(request, source)
    }
}

/// Creation of volumes from snapshots. CSI has no capability for it.
///
/// ```
/// use cofferdam_guest::{
///     CreateRequest, Result, Volume, abilities::Restoring, handle,
///     http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// impl Restoring for MyArray {
///     fn create_from_snapshot(request: CreateRequest, source: String) -> Result<Volume> {
///         let handle = handle::from_name("vol", &request.name);
///         let url = http::url("http://array", &["snapshots", &source, "restored", &handle])?;
///         let made = Request::put(url).send()?.ok_or(|_| None)?;
///         Ok(Volume::new(handle, made.json()?))
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Put, "http://array/snapshots/snap-a/", |_| Ok(Response::new(201).with_body("4096")))
///     .install();
/// let restored = MyArray::create_from_snapshot(CreateRequest::new("b", 4096), "snap-a".to_owned());
/// assert_eq!(restored.unwrap().handle, "vol-b");
/// ```
pub trait Restoring {
    /// Creates a volume with the content of the snapshot `source`, or returns the volume that an earlier
    /// identical call created.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the snapshot does not exist.
    /// - [`out_of_range`](crate::StorageError::out_of_range) if the requested size is smaller than the
    ///   snapshot.
    /// - The errors of [`Backend::create_volume`](crate::Backend::create_volume).
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume>;
}

impl<B: Restoring> bindings::restoring::exports::cofferdam::storage::restoring::Guest for Component<B> {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        <B as Restoring>::create_from_snapshot(request, source)
    }
}

/// Publishing of volumes to nodes (CSI `PUBLISH_UNPUBLISH_VOLUME`).
///
/// ```
/// use cofferdam_guest::{
///     ConnectionInfo, Result, abilities::{PublishRequest, Publishing},
///     http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// impl Publishing for MyArray {
///     fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
///         let url = http::url("http://array", &["volumes", &request.handle, "nodes", &request.node])?;
///         let made = Request::put(url).send()?.ok_or(|_| None)?;
///         Ok(ConnectionInfo::local_device(&made.text()))
///     }
///
///     fn unpublish(handle: String, node: Option<String>) -> Result<()> {
///         let url = match &node {
///             Some(node) => http::url("http://array", &["volumes", &handle, "nodes", node])?,
///             None => http::url("http://array", &["volumes", &handle, "nodes"])?,
///         };
///         let response = Request::delete(url).send()?;
///         if response.status == 404 { Ok(()) } else { response.ok_or(|_| None).map(|_| ()) }
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Delete, "http://array/volumes/vol-a/nodes/node-1", |_| Ok(Response::new(204)))
///     .on(Method::Delete, "http://array/volumes/vol-x/", |_| Ok(Response::new(404)))
///     .install();
/// MyArray::unpublish("vol-a".to_owned(), Some("node-1".to_owned())).unwrap();
/// MyArray::unpublish("vol-x".to_owned(), None).unwrap();
/// ```
pub trait Publishing {
    /// Makes a volume reachable from a node. Succeeds if the volume is already published to the node with the
    /// same capability and the same `read_only`.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the volume or the node does not exist.
    /// - [`already_exists`](crate::StorageError::already_exists) if the volume is published to the node with
    ///   another capability or another `read_only`.
    /// - [`failed_precondition`](crate::StorageError::failed_precondition) if the volume is published to
    ///   another node and cannot be published to two nodes at the same time.
    /// - [`resource_exhausted`](crate::StorageError::resource_exhausted) if the node has the maximum number
    ///   of volumes.
    fn publish(request: PublishRequest) -> Result<ConnectionInfo>;

    /// Makes a volume unreachable from a node, or from every node if `node` is `None`. Succeeds if the volume
    /// is not published or does not exist.
    ///
    /// # Errors
    ///
    /// Any failure of the storage.
    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()>;
}

impl<B: Publishing> bindings::publishing::exports::cofferdam::storage::publishing::Guest for Component<B> {
    fn publish(request: PublishRequest) -> Result<ConnectionInfo> {
        <B as Publishing>::publish(request)
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        <B as Publishing>::unpublish(handle, node)
    }
}

/// Expansion of volumes (CSI `EXPAND_VOLUME`).
///
/// ```
/// use cofferdam_guest::{
///     CapacityRange, Result, abilities::{ExpandRequest, ExpandResponse, Expansion},
///     http::{self, Method, Request, Response}, mock, sizes::Sizes,
/// };
///
/// const SIZES: Sizes = Sizes::between(1 << 20, 1 << 40).in_steps_of(1 << 20);
///
/// struct MyArray;
///
/// impl Expansion for MyArray {
///     fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
///         let url = http::url("http://array", &["volumes", &request.handle, "bytes"])?;
///         let now: u64 = Request::get(&url).send()?.ok_or(|_| None)?.json()?;
///         let grown = SIZES.grow(&request.capacity, now)?;
///         if let Some(bytes) = grown {
///             Request::put(&url).json(&bytes)?.send()?.ok_or(|_| None)?;
///         }
///         Ok(ExpandResponse { capacity_bytes: grown.unwrap_or(now), node_expansion: true })
///     }
/// }
///
/// let host = mock::MockHost::new()
///     .on(Method::Get, "http://array/", |_| Ok(Response::new(200).with_body("2097152")))
///     .on(Method::Put, "http://array/", |_| Ok(Response::new(200)))
///     .install();
/// let to = |bytes| ExpandRequest {
///     handle: "vol-a".to_owned(),
///     capacity: CapacityRange { required_bytes: Some(bytes), limit_bytes: None },
///     capability: None,
/// };
/// assert_eq!(MyArray::expand(to(3_000_000)).unwrap().capacity_bytes, 3 << 20);
/// assert_eq!(host.requests()[1].body, b"3145728");
/// assert_eq!(MyArray::expand(to(1)).unwrap().capacity_bytes, 2 << 20, "it is large enough");
/// ```
pub trait Expansion {
    /// Expands a volume to at least the required size. Succeeds with the current size if that is large enough
    /// and within the limit.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the volume does not exist.
    /// - [`out_of_range`](crate::StorageError::out_of_range) if the volume cannot have a size in the range.
    /// - [`resource_exhausted`](crate::StorageError::resource_exhausted) if there is too little space.
    /// - [`failed_precondition`](crate::StorageError::failed_precondition) if the volume is published and the
    ///   driver lacks the feature `online-expansion`.
    fn expand(request: ExpandRequest) -> Result<ExpandResponse>;
}

impl<B: Expansion> bindings::expansion::exports::cofferdam::storage::expansion::Guest for Component<B> {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        <B as Expansion>::expand(request)
    }
}

/// Modification of a volume's mutable parameters (CSI `MODIFY_VOLUME`).
///
/// ```
/// use cofferdam_guest::{
///     ErrorKind, KeyValues, Result, abilities::Modification, http::{self, Method, Request, Response}, mock,
///     parameters::ParameterReader,
/// };
///
/// struct MyArray;
///
/// impl Modification for MyArray {
///     fn modify(handle: String, parameters: KeyValues) -> Result<()> {
///         let mut reader = ParameterReader::mutable_parameters(parameters);
///         let iops = reader.parse::<u32>("iops", "a number of operations per second")?;
///         // Reject unknown keys before a request is sent.
///         reader.finish()?;
///         let url = http::url("http://array", &["volumes", &handle])?;
///         Request::patch(url).json(&iops)?.send()?.ok_or(|_| None).map(|_| ())
///     }
/// }
///
/// let host = mock::MockHost::new().on(Method::Patch, "http://array/", |_| Ok(Response::new(200))).install();
/// let modify = |key: &str| MyArray::modify("vol-a".to_owned(), vec![(key.to_owned(), "500".to_owned())]);
/// modify("iops").unwrap();
/// assert_eq!(modify("oips").unwrap_err().kind, ErrorKind::InvalidArgument);
/// assert_eq!(host.requests().len(), 1);
/// ```
pub trait Modification {
    /// Applies all of the parameters to a volume, or none of them. Succeeds if the volume already has them.
    ///
    /// # Errors
    ///
    /// After these errors nothing has been changed:
    ///
    /// - [`invalid_argument`](crate::StorageError::invalid_argument) if a parameter is unknown or has an
    ///   unsupported value.
    /// - [`not_found`](crate::StorageError::not_found) if the volume does not exist.
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()>;
}

impl<B: Modification> bindings::modification::exports::cofferdam::storage::modification::Guest
    for Component<B>
{
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        <B as Modification>::modify(handle, parameters)
    }
}

/// Snapshots of volumes (CSI `CREATE_DELETE_SNAPSHOT`, `LIST_SNAPSHOTS`, `GET_SNAPSHOT`).
///
/// ```
/// use cofferdam_guest::{
///     ErrorKind, Result, Snapshot, StorageError, abilities::{SnapshotPage, SnapshotRequest, Snapshots},
///     ambient, handle, mock, paging, state::{self, Decision, Store as _},
/// };
///
/// /// A snapshot is an entry of the import `state`. The key is its handle, the value is its source volume.
/// struct MyArray;
///
/// fn snapshot(handle: &str, source: String) -> Snapshot {
///     let (handle, created_at_ms) = (handle.to_owned(), ambient::now().as_millis() as u64);
///     Snapshot { handle, source, size_bytes: None, created_at_ms, ready: true, group: None, owner: None }
/// }
///
/// impl Snapshots for MyArray {
///     fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
///         let handle = handle::from_name("snap", &request.name);
///         state::decide(&state::HostStore, |store| match state::read::<String>(store, &handle)? {
///             Some(found) if found.value != request.source => {
///                 Err(StorageError::already_exists(format!("{handle:?} is of {:?}", found.value)))
///             }
///             Some(found) => Ok(Decision::Done(snapshot(&handle, found.value))),
///             None => {
///                 let made = snapshot(&handle, request.source.clone());
///                 Ok(Decision::Commit(vec![state::put(&handle, &request.source, None)?], made))
///             }
///         })
///     }
///
///     fn delete_snapshot(handle: String) -> Result<()> {
///         state::decide(&state::HostStore, |store| {
///             Ok(match store.get(&handle)? {
///                 Some(found) => Decision::Commit(vec![state::remove(&handle, found.version)], ()),
///                 None => Decision::Done(()),
///             })
///         })
///     }
///
///     fn list_snapshots(
///         source: Option<String>,
///         after: Option<String>,
///         limit: Option<u32>,
///     ) -> Result<SnapshotPage> {
///         let mut snapshots = Vec::new();
///         for found in state::HostStore.scan("snap-", None, u32::MAX)?.entries {
///             if let Some(read) = state::read::<String>(&state::HostStore, &found.key)? {
///                 snapshots.push(snapshot(&found.key, read.value));
///             }
///         }
///         snapshots.retain(|snapshot| source.as_ref().is_none_or(|source| snapshot.source == *source));
///         let page = paging::page(snapshots, |snapshot| &snapshot.handle, after.as_deref(), limit)?;
///         Ok(SnapshotPage { snapshots: page.items, next: page.next })
///     }
/// }
///
/// let _host = mock::MockHost::new().install();
/// let of = |source: &str| SnapshotRequest {
///     name: "s".into(),
///     source: source.into(),
///     parameters: Vec::new(),
///     owner: None,
/// };
/// let cut = MyArray::create_snapshot(of("vol-a")).unwrap();
/// assert_eq!(MyArray::create_snapshot(of("vol-a")).unwrap(), cut, "the same call finds it");
/// assert_eq!(MyArray::create_snapshot(of("vol-b")).unwrap_err().kind, ErrorKind::AlreadyExists);
/// assert_eq!(MyArray::get_snapshot(cut.handle.clone()).unwrap(), cut, "found by the default, in the list");
/// MyArray::delete_snapshot(cut.handle.clone()).unwrap();
/// assert_eq!(MyArray::get_snapshot(cut.handle).unwrap_err().kind, ErrorKind::NotFound);
/// ```
pub trait Snapshots {
    /// Creates a snapshot, or returns the snapshot that an earlier identical call created.
    ///
    /// # Errors
    ///
    /// - [`already_exists`](crate::StorageError::already_exists) if a snapshot of this name exists with
    ///   another source.
    /// - [`resource_exhausted`](crate::StorageError::resource_exhausted) if there is too little space.
    /// - [`not_found`](crate::StorageError::not_found) if the source does not exist.
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot>;

    /// Deletes a snapshot. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// - [`invalid_argument`](crate::StorageError::invalid_argument) if the snapshot is a member of a group.
    /// - [`failed_precondition`](crate::StorageError::failed_precondition) if another object depends on the
    ///   snapshot.
    fn delete_snapshot(handle: SnapshotHandle) -> Result<()>;

    /// Returns a snapshot.
    ///
    /// The default searches the pages of [`list_snapshots`](Self::list_snapshots) until it finds the
    /// snapshot, so it may read every snapshot of the storage. Override it if the storage can read a single
    /// snapshot.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the snapshot does not exist.
    /// - In the default, the errors of [`list_snapshots`](Self::list_snapshots).
    fn get_snapshot(handle: SnapshotHandle) -> Result<Snapshot> {
        let mut after = None;
        loop {
            let SnapshotPage { snapshots, next } = Self::list_snapshots(None, after, None)?;
            if let Some(found) = snapshots.into_iter().find(|snapshot| snapshot.handle == handle) {
                return Ok(found);
            }
            if next.is_none() {
                return Err(StorageError::not_found(format!("there is no snapshot {handle:?}")));
            }
            after = next;
        }
    }

    /// Lists a page of the snapshots of the volume `source`, or of all snapshots if `source` is `None`. It is
    /// the page of the token `after`, or the first page if `after` is `None`. The page has at most `limit`
    /// snapshots; if `limit` is `None`, the backend chooses the number.
    ///
    /// # Errors
    ///
    /// - [`aborted`](crate::StorageError::aborted) if no listing returned the token `after`.
    fn list_snapshots(
        source: Option<VolumeHandle>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage>;
}

impl<B: Snapshots> bindings::snapshots::exports::cofferdam::storage::snapshots::Guest for Component<B> {
    fn create(request: SnapshotRequest) -> Result<Snapshot> {
        <B as Snapshots>::create_snapshot(request)
    }

    fn delete(handle: SnapshotHandle) -> Result<()> {
        <B as Snapshots>::delete_snapshot(handle)
    }

    fn get(handle: SnapshotHandle) -> Result<Snapshot> {
        <B as Snapshots>::get_snapshot(handle)
    }

    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage> {
        <B as Snapshots>::list_snapshots(source, after, limit)
    }
}

/// Snapshots of several volumes at the same point in time (CSI `CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT`).
///
/// ```
/// use cofferdam_guest::{
///     Result, Snapshot, SnapshotHandle, abilities::{GroupRequest, GroupSnapshot, GroupSnapshots}, handle,
///     http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// fn group(handle: String, sources: Vec<String>, created_at_ms: u64) -> GroupSnapshot {
///     let member = |source: String| Snapshot {
///         // Deterministic, and always a digest because of the space.
///         handle: handle::from_name("member", &format!("{handle} {source}")),
///         source,
///         size_bytes: None,
///         created_at_ms,
///         ready: true,
///         group: Some(handle.clone()),
///         owner: None,
///     };
///     let snapshots = sources.into_iter().map(member).collect();
///     GroupSnapshot { handle, created_at_ms, ready: true, snapshots }
/// }
///
/// impl GroupSnapshots for MyArray {
///     fn create_group_snapshot(request: GroupRequest) -> Result<GroupSnapshot> {
///         let handle = handle::from_name("group", &request.name);
///         let url = http::url("http://array", &["groups", &handle])?;
///         let cut = Request::put(url).json(&request.sources)?.send()?.ok_or(|_| None)?;
///         Ok(group(handle, request.sources, cut.json()?))
///     }
///
///     fn delete_group_snapshot(handle: String, _snapshots: Vec<SnapshotHandle>) -> Result<()> {
///         let response = Request::delete(http::url("http://array", &["groups", &handle])?).send()?;
///         if response.status == 404 { Ok(()) } else { response.ok_or(|_| None).map(|_| ()) }
///     }
///
///     fn get_group_snapshot(handle: String, _snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
///         let response = Request::get(http::url("http://array", &["groups", &handle])?).send()?;
///         let (sources, created_at_ms) = response.ok_or(|_| None)?.json()?;
///         Ok(group(handle, sources, created_at_ms))
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Put, "http://array/groups/group-g", |_| Ok(Response::new(201).with_body("7")))
///     .on(Method::Get, "http://array/groups/group-g", |_| {
///         Ok(Response::new(200).with_body(r#"[["vol-a"], 7]"#))
///     })
///     .install();
/// let request = GroupRequest {
///     name: "g".into(),
///     sources: vec!["vol-a".into()],
///     parameters: Vec::new(),
///     owner: None,
/// };
/// let cut = MyArray::create_group_snapshot(request).unwrap();
/// assert_eq!(MyArray::get_group_snapshot(cut.handle.clone(), Vec::new()).unwrap(), cut);
/// ```
pub trait GroupSnapshots {
    /// Creates a group: one snapshot of each source, all at the same point in time. If one snapshot cannot be
    /// created, none is. Returns the existing group if an earlier identical call created it.
    ///
    /// # Errors
    ///
    /// - [`already_exists`](crate::StorageError::already_exists) if a group of this name exists with other
    ///   sources.
    /// - [`resource_exhausted`](crate::StorageError::resource_exhausted) if there is too little space.
    /// - [`not_found`](crate::StorageError::not_found) if a source does not exist.
    fn create_group_snapshot(request: GroupRequest) -> Result<GroupSnapshot>;

    /// Deletes a group and its snapshots. Succeeds if the group does not exist.
    ///
    /// # Errors
    ///
    /// - [`failed_precondition`](crate::StorageError::failed_precondition) if another object depends on a
    ///   member. Then no member is deleted.
    /// - [`invalid_argument`](crate::StorageError::invalid_argument) if `snapshots` are not exactly the
    ///   members of the group.
    fn delete_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()>;

    /// Returns a group.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the group does not exist.
    /// - [`invalid_argument`](crate::StorageError::invalid_argument) if `snapshots` are not exactly the
    ///   members of the group.
    fn get_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot>;
}

impl<B: GroupSnapshots> bindings::group_snapshots::exports::cofferdam::storage::group_snapshots::Guest
    for Component<B>
{
    fn create(request: GroupRequest) -> Result<GroupSnapshot> {
        <B as GroupSnapshots>::create_group_snapshot(request)
    }

    fn delete(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        <B as GroupSnapshots>::delete_group_snapshot(handle, snapshots)
    }

    fn get(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        <B as GroupSnapshots>::get_group_snapshot(handle, snapshots)
    }
}

/// Listing of all volumes (CSI `LIST_VOLUMES`).
///
/// ```
/// use cofferdam_guest::{
///     Result, Volume, VolumeStatus, abilities::{Listing, VolumePage},
///     http::{Method, Request, Response}, mock, paging,
/// };
///
/// struct MyArray;
///
/// impl Listing for MyArray {
///     fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
///         let response = Request::get("http://array/volumes").send()?;
///         let all: Vec<(String, u64)> = response.ok_or(|_| None)?.json()?;
///         let page = paging::page(all, |(name, _)| name, after.as_deref(), limit)?;
///         let status = |(name, bytes)| VolumeStatus {
///             volume: Volume::new(name, bytes),
///             owner: None,
///             published_nodes: Vec::new(),
///             condition: None,
///             changed_at_ms: None,
///         };
///         Ok(VolumePage { volumes: page.items.into_iter().map(status).collect(), next: page.next })
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Get, "http://array/", |_| Ok(Response::new(200).with_body(r#"[["b", 2], ["a", 1]]"#)))
///     .install();
/// let first = MyArray::list_volumes(None, Some(1)).unwrap();
/// assert_eq!(first.volumes[0].volume.handle, "a");
/// let rest = MyArray::list_volumes(first.next, Some(1)).unwrap();
/// assert_eq!((rest.volumes[0].volume.handle.as_str(), rest.next), ("b", None));
/// ```
pub trait Listing {
    /// Lists a page of the volumes: the page of the token `after`, or the first page if `after` is `None`.
    /// The page has at most `limit` volumes; if `limit` is `None`, the backend chooses the number.
    ///
    /// # Errors
    ///
    /// - [`aborted`](crate::StorageError::aborted) if no listing returned the token `after`.
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage>;
}

impl<B: Listing> bindings::listing::exports::cofferdam::storage::listing::Guest for Component<B> {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        <B as Listing>::list_volumes(after, limit)
    }
}

/// Status of a single volume (CSI `GET_VOLUME`).
///
/// ```
/// use cofferdam_guest::{
///     Condition, ErrorKind, Result, StorageError, Volume, VolumeStatus, abilities::Inspection,
///     http::{self, Method, Request, Response}, mock,
/// };
///
/// struct MyArray;
///
/// impl Inspection for MyArray {
///     fn get_volume(handle: String) -> Result<VolumeStatus> {
///         let response = Request::get(http::url("http://array", &["volumes", &handle])?).send()?;
///         let found = response.ok_or(|response| match response.status {
///             404 => Some(StorageError::not_found(format!("there is no volume {handle:?}"))),
///             _ => None,
///         })?;
///         let (bytes, complaint): (u64, Option<String>) = found.json()?;
///         Ok(VolumeStatus {
///             volume: Volume::new(handle, bytes),
///             owner: None,
///             published_nodes: Vec::new(),
///             condition: Some(Condition {
///                 abnormal: complaint.is_some(),
///                 message: complaint.unwrap_or_else(|| "well".to_owned()),
///             }),
///             changed_at_ms: None,
///         })
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Get, "http://array/", |_| Ok(Response::new(404)))
///     .on(Method::Get, "http://array/volumes/vol-a", |_| Ok(Response::new(200).with_body(r#"[7, "slow"]"#)))
///     .install();
/// assert!(MyArray::get_volume("vol-a".to_owned()).unwrap().condition.unwrap().abnormal);
/// assert_eq!(MyArray::get_volume("vol-b".to_owned()).unwrap_err().kind, ErrorKind::NotFound);
/// ```
pub trait Inspection {
    /// Returns a volume and its status.
    ///
    /// # Errors
    ///
    /// - [`not_found`](crate::StorageError::not_found) if the volume does not exist.
    fn get_volume(handle: VolumeHandle) -> Result<VolumeStatus>;
}

impl<B: Inspection> bindings::inspection::exports::cofferdam::storage::inspection::Guest for Component<B> {
    fn get(handle: VolumeHandle) -> Result<VolumeStatus> {
        <B as Inspection>::get_volume(handle)
    }
}

/// Available capacity (CSI `GET_CAPACITY`).
///
/// ```
/// use cofferdam_guest::{
///     Result, abilities::{Capacity, CapacityReport, CapacityRequest},
///     http::{Method, Request, Response}, mock, parameters::ParameterReader,
/// };
///
/// struct MyArray;
///
/// impl Capacity for MyArray {
///     fn available(request: CapacityRequest) -> Result<CapacityReport> {
///         ParameterReader::parameters(request.parameters).finish()?;
///         let free: u64 = Request::get("http://array/free").send()?.ok_or(|_| None)?.json()?;
///         Ok(CapacityReport {
///             available_bytes: free,
///             maximum_volume_bytes: Some(free.min(1 << 40)),
///             minimum_volume_bytes: None,
///         })
///     }
/// }
///
/// let _host = mock::MockHost::new()
///     .on(Method::Get, "http://array/free", |_| Ok(Response::new(200).with_body("4096")))
///     .install();
/// let all = CapacityRequest { capabilities: Vec::new(), parameters: Vec::new(), topology: None };
/// assert_eq!(MyArray::available(all).unwrap().available_bytes, 4096);
/// ```
pub trait Capacity {
    /// Returns the bytes that are available for new volumes with the capabilities and parameters of the
    /// request, in its topology segment. Without a segment, the bytes are those of the whole storage.
    ///
    /// # Errors
    ///
    /// Any failure of the storage.
    fn available(request: CapacityRequest) -> Result<CapacityReport>;
}

impl<B: Capacity> bindings::capacity::exports::cofferdam::storage::capacity::Guest for Component<B> {
    fn available(request: CapacityRequest) -> Result<CapacityReport> {
        <B as Capacity>::available(request)
    }
}
