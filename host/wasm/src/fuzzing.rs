//! Entry points for the fuzz targets in `host/testing/fuzz`: what this crate does with the values that a guest
//! returns, the URLs that it requests, and the responses of servers. The public functions of this crate reach
//! these parts only through a component or a network.
//!
//! The module exists with the feature `fuzzing`, which only the package `cofferdam-fuzz` enables.

use std::{io, net::IpAddr, sync::Arc};

use cofferdam_backend::{CallContext, ContractViolation, Redactor};
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        Capacity, ConnectionInfo, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
        Readiness, Secrets, Snapshot, SnapshotPage, StorageError, Validation, VolumePage, VolumeStatus,
    },
};
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use wasmtime::component::ResourceTable;

use crate::{
    backend::methods,
    bindings::cofferdam::storage::http::{Host as _, Request},
    capabilities::{
        http::{
            HttpView,
            client::HttpClient,
            config::HttpConfig,
            connect::{self, ExchangePermit, Resolve},
            origin::UrlHost,
            policy::{OriginError, OriginPolicy, OriginTarget},
        },
        secrets::Tenant,
    },
    convert,
    fault_injection::FaultPlan,
    limits::Limits,
    loader,
};

/// The types of the contract, as wasmtime lifts them from a guest's memory.
pub mod contract {
    pub use crate::bindings::{
        cofferdam::storage::{
            http::{Failure, HttpError, Method, Response},
            types::{
                Condition, ConnectionInfo, ErrorKind, Finality, Owner, ReclaimPolicy, Snapshot,
                SnapshotOwner, StorageError, Volume, VolumeStatus,
            },
        },
        exports::cofferdam::storage::{
            capacity::CapacityReport,
            expansion::ExpandResponse,
            group_snapshots::GroupSnapshot,
            identity::{Description, Placement, Readiness},
            listing::VolumePage,
            snapshots::SnapshotPage,
            volumes::Validation,
        },
    };
}

/// Converts and checks the volume that a guest returned.
///
/// # Errors
/// The rule of the contract that the volume breaks.
pub fn created_volume(
    volume: contract::Volume,
    redactor: &Redactor,
) -> Result<CreatedVolume, ContractViolation> {
    methods::checked_volume(volume, redactor)
}

/// Converts and checks the status of a volume.
///
/// # Errors
/// The rule of the contract that the status breaks.
pub fn volume_status(
    status: contract::VolumeStatus,
    redactor: &Redactor,
) -> Result<VolumeStatus, ContractViolation> {
    methods::checked_status(status, redactor)
}

/// Converts and checks a page of volumes.
///
/// # Errors
/// The rule of the contract that the page breaks.
pub fn volume_page(
    page: contract::VolumePage,
    request: &PageRequest,
    redactor: &Redactor,
) -> Result<VolumePage, ContractViolation> {
    methods::checked_volume_page(page, request, redactor)
}

/// Converts and checks connection info.
///
/// # Errors
/// The rule of the contract that the connection info breaks.
pub fn connection_info(
    connection_info: contract::ConnectionInfo,
    redactor: &Redactor,
) -> Result<ConnectionInfo, ContractViolation> {
    methods::checked_connection_info(connection_info, redactor)
}

/// Converts and checks a snapshot.
///
/// # Errors
/// The rule of the contract that the snapshot breaks.
pub fn snapshot(snapshot: contract::Snapshot, redactor: &Redactor) -> Result<Snapshot, ContractViolation> {
    methods::checked_snapshot(snapshot, redactor)
}

/// Converts and checks a page of snapshots. If `source` is set, all snapshots must be of that volume.
///
/// # Errors
/// The rule of the contract that the page breaks.
pub fn snapshot_page(
    page: contract::SnapshotPage,
    request: &PageRequest,
    source: Option<&VolumeHandle>,
    redactor: &Redactor,
) -> Result<SnapshotPage, ContractViolation> {
    methods::checked_snapshot_page(page, request, source, redactor)
}

/// Converts and checks a group snapshot.
///
/// # Errors
/// The rule of the contract that the group breaks.
pub fn group_snapshot(
    group: contract::GroupSnapshot,
    redactor: &Redactor,
) -> Result<GroupSnapshot, ContractViolation> {
    methods::checked_group_snapshot(group, redactor)
}

/// Converts and checks an expanded volume.
///
/// # Errors
/// The rule of the contract that the response breaks.
pub fn expanded_volume(
    expanded: contract::ExpandResponse,
    redactor: &Redactor,
) -> Result<ExpandedVolume, ContractViolation> {
    methods::checked_expansion(expanded, redactor)
}

/// Converts and checks a capacity.
///
/// # Errors
/// The rule of the contract that the report breaks.
pub fn capacity(
    report: contract::CapacityReport,
    redactor: &Redactor,
) -> Result<Capacity, ContractViolation> {
    methods::checked_capacity(report, redactor)
}

/// Converts and checks a description.
///
/// # Errors
/// The rule of the contract that the description breaks.
pub fn description(
    description: contract::Description,
    redactor: &Redactor,
) -> Result<Description, ContractViolation> {
    loader::checked_description(description, redactor)
}

/// Converts a readiness, without the call's secrets.
pub fn readiness(readiness: contract::Readiness, redactor: &Redactor) -> Readiness {
    convert::readiness(readiness, redactor)
}

/// Converts a validation, without the call's secrets.
pub fn validation(validation: contract::Validation, redactor: &Redactor) -> Validation {
    convert::validation(validation, redactor)
}

/// Converts an error, without the call's secrets.
pub fn storage_error(error: contract::StorageError, redactor: &Redactor) -> StorageError {
    convert::storage_error(error, redactor)
}

/// The allowed origins of a backend.
#[derive(Debug)]
pub struct Origins(OriginPolicy);

/// A URL with an allowed origin.
#[derive(Clone, Debug)]
pub struct AllowedUrl {
    target: Arc<OriginTarget>,
    /// Path and query, as they are sent.
    pub path: String,
}

/// The host of an [`AllowedUrl`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHost {
    /// A name.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl Origins {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The problem of an origin.
    pub fn new(config: &HttpConfig) -> Result<Self, Box<OriginError>> {
        OriginPolicy::new(config).map(Self).map_err(|invalid| invalid.error)
    }

    /// Parses a URL that a guest requests; `None` if the host rejects the request.
    pub fn find(&self, url: &str) -> Option<AllowedUrl> {
        let (target, path) = self.0.target(url).ok()?;
        Some(AllowedUrl { target, path: path.to_string() })
    }
}

impl AllowedUrl {
    /// True for TLS.
    pub fn is_https(&self) -> bool {
        self.target.tls.is_some()
    }

    /// The host of the connection.
    pub fn host(&self) -> AllowedHost {
        match &self.target.origin.host {
            UrlHost::Name(name) => AllowedHost::Name(name.clone()),
            UrlHost::Address(address) => AllowedHost::Address(*address),
        }
    }

    /// The port of the connection.
    pub fn port(&self) -> u16 {
        self.target.origin.port
    }

    /// The value of the header `Host`.
    pub fn authority(&self) -> String {
        self.target.origin.authority()
    }

    /// True if the host connects to this address for the URL.
    pub fn is_address_allowed(&self, address: IpAddr) -> bool {
        self.target.is_allowed(address)
    }
}

/// The import `http` of one call.
#[derive(Debug)]
pub struct HttpImport {
    context: CallContext,
    client: Arc<HttpClient>,
}

/// A resolver without names: every connection comes from [`HttpImport::connect`].
#[derive(Debug)]
struct NoNames;

impl Resolve for NoNames {
    fn resolve<'a>(&'a self, _: &'a str, _: ExchangePermit) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async { Err(io::Error::other("no names")) })
    }
}

impl HttpImport {
    /// The import of a call with the deadline.
    ///
    /// # Errors
    /// The problem of an origin.
    pub fn new(config: &HttpConfig, limits: &Limits, deadline: Instant) -> Result<Self, Box<OriginError>> {
        let policy = OriginPolicy::new(config).map_err(|invalid| invalid.error)?;
        Ok(Self {
            context: CallContext::new(deadline, Secrets::default()),
            client: Arc::new(HttpClient::new(policy, limits, Arc::new(NoNames))),
        })
    }

    /// Adds a stream as an idle connection to the origin of an allowed URL. The next request to the origin
    /// uses it.
    pub async fn connect<S>(&self, url: &AllowedUrl, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // The handshake of HTTP/1 is local: it fails for no stream.
        let Ok(connection) = connect::handshake(&url.target, stream).await else { return };
        let tenant = Tenant::from_secrets(&self.context.secrets);
        self.client.add_connection(url.target.origin.clone(), tenant, connection).await;
    }

    /// Sends a request of the guest without authorization.
    ///
    /// # Errors
    /// The outer error ends the guest's call; the guest receives the inner error.
    pub async fn send(
        &self,
        method: contract::Method,
        url: String,
        headers: Vec<(String, String)>,
        body: Option<Vec<u8>>,
    ) -> wasmtime::Result<Result<contract::Response, contract::HttpError>> {
        let request = Request { method, url, headers, body, authorization: None, timeout_ms: None };
        let (mut handles, faults) = (ResourceTable::new(), FaultPlan::default());
        HttpView { context: &self.context, handles: &mut handles, client: &self.client, faults: &faults }
            .send(request)
            .await
    }
}
