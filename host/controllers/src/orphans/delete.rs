//! Deletes one requested volume or snapshot: decides with live reads, writes the start of the deletion to the
//! ConfigMap, decides again, calls the driver, then writes the response.

use cofferdam_cluster::{
    ApiError, OrphanReport, deletion_freeze, orphan_report::OrphanKind, queue::Action, reflector::Scope,
    writer::CachedKind,
};
use cofferdam_domain::{
    Volume, VolumeSnapshot, VolumeSnapshotContent,
    storage::{ErrorKind, Finality, Secrets},
    text::printable,
};
use serde_json::{Value, json};

use super::{
    history::ObservationHistory,
    reads::{ScanError, has_intent},
    report::{
        DELETE, DELETING, DeletionRequest, DeletionResponse, DeletionResult, REPORT, RESPONSE, ScanReport,
    },
    resource::Resource,
    rules::{self, DeletionInput, DeletionVerdict, Reference},
    scan::{DriverScanState, OrphanScanner, classify_with_history},
};
use crate::{drivers::ManagedDriver, events::EventSpec};

/// Result of one step of a request.
enum RequestStep {
    /// The request is decided: this response has to be written.
    Respond(DeletionResponse),
    /// The start of the deletion was written to the ConfigMap, or this write failed.
    Started(Result<(), ApiError>),
    /// The inputs of the decision could not be read, or the effect of the driver call is not known: the
    /// request is retried.
    Retry,
}

impl OrphanScanner {
    /// Performs the next effect of a request: the write of `deleting`, or the driver call if there is one and
    /// the write of the response. Returns the result of the write. The outer `Err` ends this reconcile.
    pub(super) async fn handle_request(
        &self,
        driver: &ManagedDriver,
        config_map: &OrphanReport,
        last_report: Option<ScanReport>,
        scan_state: &mut DriverScanState,
    ) -> Result<Result<(), ApiError>, Action> {
        let started = config_map.data_value(DELETING);
        let Some(text) = started.or(config_map.data_value(DELETE)) else { return Ok(Ok(())) };
        let request = DeletionRequest::parse(text);
        // The response to a request that was replaced meanwhile is dropped.
        let pending_response = scan_state
            .pending_response
            .take()
            .filter(|response| response.request.as_ref() == request.as_ref().ok());
        let response = match (pending_response, request) {
            (Some(response), _) => response,
            (None, Err(error)) => self.refused_response(None, error.to_string()),
            (None, Ok(request)) => {
                match self
                    .process_request(driver, config_map, request, started.is_some(), &mut scan_state.history)
                    .await
                {
                    RequestStep::Respond(response) => response,
                    RequestStep::Started(written) => return Ok(written),
                    RequestStep::Retry => return Err(Action::Backoff),
                }
            }
        };
        let written = self.write_response(driver, config_map, text, last_report, &response).await;
        if written.is_err() {
            // Keep the response, so that the driver is not called again.
            scan_state.pending_response = Some(response);
        }
        Ok(written)
    }

    /// Decides on a request. If it is not refused, performs the next effect: the write of `deleting`, or the
    /// driver call.
    async fn process_request(
        &self,
        driver: &ManagedDriver,
        config_map: &OrphanReport,
        request: DeletionRequest,
        is_started: bool,
        history: &mut ObservationHistory,
    ) -> RequestStep {
        let name = &driver.backend.description().name;
        let decision = match self.decide_deletion(driver, &request, is_started, history).await {
            Ok(decision) => decision,
            Err(error) => {
                let (kind, handle) = (self.context.kind, &request.handle);
                tracing::warn!(
                    driver = %name, %kind, %handle, %error, "cannot decide on a deletion; retrying",
                );
                return RequestStep::Retry;
            }
        };
        match decision {
            DeletionVerdict::Refuse(reason) => {
                RequestStep::Respond(self.refused_response(Some(request), reason))
            }
            DeletionVerdict::AlreadyDeleted => {
                let message = "the driver no longer lists it".to_owned();
                RequestStep::Respond(self.response(Some(request), DeletionResult::Deleted, message))
            }
            DeletionVerdict::Delete if is_started => {
                self.call_deletion(driver, request).await.map_or(RequestStep::Retry, RequestStep::Respond)
            }
            // The inputs are read again after this write. Its success also proves that the API server is
            // reachable.
            DeletionVerdict::Delete => {
                let data = json!({DELETING: json!(request).to_string()});
                RequestStep::Started(self.write(name, Some(config_map), data).await.map(drop))
            }
        }
    }

    /// Calls `DeleteVolume` or `DeleteSnapshot`. Returns `None` if the call must be retried, because it may
    /// still take effect.
    async fn call_deletion(
        &self,
        driver: &ManagedDriver,
        request: DeletionRequest,
    ) -> Option<DeletionResponse> {
        let (name, kind) = (&driver.backend.description().name, self.context.kind);
        tracing::info!(
            driver = %name, %kind, handle = %request.handle, requested_by = %printable(&request.requested_by),
            "deleting an orphan",
        );
        let call = self.context.calls.call(&self.context.term, Secrets::default());
        let handle = request.handle.as_str();
        let (method, response) = match kind {
            OrphanKind::Volume => ("DeleteVolume", driver.backend.delete_volume(call, handle.into()).await),
            OrphanKind::Snapshot => {
                ("DeleteSnapshot", driver.backend.delete_snapshot(call, handle.into()).await)
            }
        };
        match response {
            Ok(()) => Some(self.response(Some(request), DeletionResult::Deleted, "deleted".to_owned())),
            Err(error) if error.finality != Finality::Final => {
                tracing::warn!(driver = %name, %kind, %handle, %error, "deleting an orphan failed; retrying");
                None
            }
            Err(error) if error.kind == ErrorKind::NotFound => Some(self.response(
                Some(request),
                DeletionResult::Deleted,
                "the driver returned NotFound".to_owned(),
            )),
            Err(error) => Some(self.refused_response(Some(request), format!("{method} failed: {error}"))),
        }
    }

    /// Decides on a request. The driver is listed, and the objects with handles, intents and restore marker
    /// are read live, and so are the resourceVersions that reveal a restore of the cluster; the claim of a
    /// volume is that of the cache. The cluster is read last, because it may change while the driver lists. A
    /// request that is refused at once, because deletions are frozen, it has expired or the driver cannot
    /// list, reads nothing.
    async fn decide_deletion(
        &self,
        driver: &ManagedDriver,
        request: &DeletionRequest,
        is_started: bool,
        history: &mut ObservationHistory,
    ) -> Result<DeletionVerdict, ScanError> {
        let (kind, namespace, writer) = (self.context.kind, &self.context.namespace, &self.context.writer);
        let frozen = || DeletionVerdict::Refuse(rules::frozen_message(kind, namespace));
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Ok(frozen());
        }
        if let Some(message) = rules::expired_message(request, self.now()).filter(|_| !is_started) {
            return Ok(DeletionVerdict::Refuse(message));
        }
        let resource = match self.find_listed(driver, request).await {
            Ok(Some(resource)) => resource,
            Ok(None) => {
                return Ok(rules::decide_deletion(&DeletionInput {
                    kind,
                    listed: None,
                    unreadable: None,
                    is_started,
                }));
            }
            Err(ScanError::Unlistable(reason)) => return Ok(DeletionVerdict::Refuse(reason.to_string())),
            Err(error) => return Err(error),
        };
        let unreadable = self.read_references().await?;
        let has_owner_intent = match &resource {
            Resource::Volume(status) => match &status.owner {
                Some(owner) => driver.journal.has_intent_for_live(&owner.claim_uid, &owner.pv_name).await?,
                None => false,
            },
            Resource::Snapshot(_) => false,
        };
        let sources = self.context.requested_sources(driver).await?;
        self.context.restore_check.detect_live().await?;
        let has_marker = deletion_freeze::is_frozen_live(writer, namespace).await?;
        if has_marker || deletion_freeze::is_frozen(&self.context.cache) {
            return Ok(frozen());
        }
        if is_started && resource.changed_at_ms().is_none() {
            history.restore_started(&resource, self.now());
        }
        let intent = |resource: &Resource| has_owner_intent || has_intent(driver, &sources, resource);
        let input = self.classification_input(&driver.backend.description().name, &intent, None, self.now());
        let classification = classify_with_history(&input, &resource, history);
        Ok(rules::decide_deletion(&DeletionInput {
            kind,
            listed: Some((&resource, classification)),
            unreadable,
            is_started,
        }))
    }

    /// Reads the objects that may refer to a volume or a snapshot into the cache. Returns one that cannot be
    /// decoded, if there is one.
    async fn read_references(&self) -> Result<Option<Reference>, ApiError> {
        match self.context.kind {
            OrphanKind::Volume => {
                let volume = self.read_all::<Volume>().await?.map(Reference::UnreadableVolume);
                let claim = || self.context.cache.claims.undecodable_key().map(Reference::UnreadableClaim);
                Ok(volume.or_else(claim))
            }
            OrphanKind::Snapshot => {
                let content = self.read_all::<VolumeSnapshotContent>().await?;
                let snapshot = self.read_all::<VolumeSnapshot>().await?;
                let unreadable = content.map(Reference::UnreadableContent);
                Ok(unreadable.or_else(|| snapshot.map(Reference::UnreadableSnapshot)))
            }
        }
    }

    /// Reads all objects of a kind into the cache. Returns the key of one that cannot be decoded, if there is
    /// one.
    async fn read_all<K: CachedKind>(&self) -> Result<Option<K::Key>, ApiError> {
        let objects = self.context.writer.list_scope::<K>(&Scope::default()).await?;
        Ok(objects.into_iter().find_map(|object| object.err().map(|undecodable| undecodable.key)))
    }

    async fn find_listed(
        &self,
        driver: &ManagedDriver,
        request: &DeletionRequest,
    ) -> Result<Option<Resource>, ScanError> {
        let mut pages = self.context.list(driver).await?;
        while let Some(page) = self.context.next_page(&mut pages).await? {
            if let Some(found) = page.into_iter().find(|found| found.handle() == request.handle) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Replaces the request, whose encoding is `text`, with its response. A newer request in `delete` is
    /// kept. A deleted volume or snapshot is also removed from the report, and an event on the ConfigMap
    /// reports its deletion.
    async fn write_response(
        &self,
        driver: &ManagedDriver,
        config_map: &OrphanReport,
        text: &str,
        last_report: Option<ScanReport>,
        response: &DeletionResponse,
    ) -> Result<(), ApiError> {
        let name = &driver.backend.description().name;
        let deleted = response.request.as_ref().filter(|_| response.result == DeletionResult::Deleted);
        let mut data = json!({DELETING: Value::Null, RESPONSE: json!(response).to_string()});
        if let Some(data) = data.as_object_mut().filter(|_| config_map.data_value(DELETE) == Some(text)) {
            data.insert(DELETE.to_owned(), Value::Null);
        }
        let report = last_report.zip(deleted).map(|(mut report, request)| {
            report.remove(&request.handle);
            report
        });
        if let (Some(report), Some(data)) = (&report, data.as_object_mut()) {
            data.insert(REPORT.to_owned(), json!(json!(report).to_string()));
        }
        let map = self.write(name, Some(config_map), data).await?;
        if let Some(report) = &report {
            self.context.metrics.record_report(report);
        }
        if let Some(DeletionRequest { handle, requested_by, .. }) = deleted {
            let text = format!(
                "Deleted orphaned {} {handle}, requested by {requested_by}: {}",
                self.context.kind, response.message
            );
            self.emit_event(driver, &map, EventSpec::normal("OrphanDeleted", text));
        }
        Ok(())
    }

    fn refused_response(&self, request: Option<DeletionRequest>, message: String) -> DeletionResponse {
        self.response(request, DeletionResult::Refused, message)
    }

    fn response(
        &self,
        request: Option<DeletionRequest>,
        result: DeletionResult,
        message: String,
    ) -> DeletionResponse {
        DeletionResponse { request, result, message, answered_at: self.now() }
    }
}
