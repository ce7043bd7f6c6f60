//! Deletes one requested volume: decides with live reads, writes the start of the deletion to the ConfigMap,
//! decides again, calls the driver, then writes the response.

use cofferdam_cluster::{ApiError, OrphanReport, deletion_freeze, queue::Action, reflector::Scope};
use cofferdam_domain::{
    Volume, VolumeHandle,
    storage::{Ability, ErrorKind, Finality, Secrets, VolumeOwner, VolumeStatus},
    text::printable,
};
use serde_json::{Value, json};

use super::{
    history::ObservationHistory,
    report::{
        DELETE, DELETING, DeletionRequest, DeletionResponse, DeletionResult, REPORT, RESPONSE, ScanReport,
    },
    rules::{self, DeletionInput, DeletionVerdict},
    scan::{DriverScanState, OrphanScanner, classify_with_history},
};
use crate::{
    drivers::ManagedDriver,
    events::EventSpec,
    volume_listing::{ListingError, VolumePages},
};

/// A failure to read the inputs of a decision. The request is retried.
#[derive(Debug, thiserror::Error)]
enum VolumeLookupError {
    #[error("cannot list the driver's volumes: {0}")]
    Listing(#[from] ListingError),
    #[error(transparent)]
    Read(#[from] ApiError),
}

/// Result of one step of a request.
enum RequestStep {
    /// The request is decided: this response has to be written.
    Respond(DeletionResponse),
    /// The start of the deletion was written to the ConfigMap, or this write failed.
    Started(Result<(), ApiError>),
    /// The inputs of the decision could not be read, or the effect of `DeleteVolume` is not known: the
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
                let volume = &request.handle;
                tracing::warn!(driver = %name, %volume, %error, "cannot decide on a deletion; retrying");
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
                self.delete_volume(driver, request).await.map_or(RequestStep::Retry, RequestStep::Respond)
            }
            // The inputs are read again after this write. Its success also proves that the API server is
            // reachable.
            DeletionVerdict::Delete => {
                let data = json!({DELETING: json!(request).to_string()});
                RequestStep::Started(self.write(name, Some(config_map), data).await.map(drop))
            }
        }
    }

    /// Calls `DeleteVolume`. Returns `None` if the call must be retried, because it may still take effect.
    async fn delete_volume(
        &self,
        driver: &ManagedDriver,
        request: DeletionRequest,
    ) -> Option<DeletionResponse> {
        let name = &driver.backend.description().name;
        tracing::info!(
            driver = %name, volume = %request.handle, requested_by = %printable(&request.requested_by),
            "deleting an orphan",
        );
        let call = self.context.calls.call(&self.context.term, Secrets::default());
        match driver.backend.delete_volume(call, request.handle.clone()).await {
            Ok(()) => Some(self.response(Some(request), DeletionResult::Deleted, "deleted".to_owned())),
            Err(error) if error.finality != Finality::Final => {
                let volume = &request.handle;
                tracing::warn!(driver = %name, %volume, %error, "deleting an orphan failed; retrying");
                None
            }
            Err(error) if error.kind == ErrorKind::NotFound => Some(self.response(
                Some(request),
                DeletionResult::Deleted,
                "the driver returned NotFound".to_owned(),
            )),
            Err(error) => Some(self.refused_response(Some(request), format!("DeleteVolume failed: {error}"))),
        }
    }

    /// Decides on a request. The driver's volumes, PersistentVolumes, intents and restore marker are read
    /// live, and so are the resourceVersions that reveal a restore of the cluster; the claim is that of the
    /// cache. The cluster is read last, because it may change while the driver lists. A request that is
    /// refused at once, because the driver cannot list, deletions are frozen or it has expired, reads
    /// nothing.
    async fn decide_deletion(
        &self,
        driver: &ManagedDriver,
        request: &DeletionRequest,
        is_started: bool,
        history: &mut ObservationHistory,
    ) -> Result<DeletionVerdict, VolumeLookupError> {
        let (namespace, writer) = (&self.context.namespace, &self.context.writer);
        if !driver.backend.abilities().contains(&Ability::Listing) {
            return Ok(DeletionVerdict::Refuse(format!("the driver has no `{}`", Ability::Listing)));
        }
        let frozen = || DeletionVerdict::Refuse(rules::frozen_message(namespace));
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Ok(frozen());
        }
        if let Some(message) = rules::expired_message(request, self.now()).filter(|_| !is_started) {
            return Ok(DeletionVerdict::Refuse(message));
        }
        let Some(status) = self.find_volume(driver, &request.handle).await? else {
            return Ok(rules::decide_deletion(&DeletionInput {
                volume: None,
                unreadable: None,
                unreadable_claim: None,
                is_started,
            }));
        };
        let volumes = writer.list_scope::<Volume>(&Scope::default()).await?;
        let unreadable =
            volumes.into_iter().find_map(|volume| volume.err().map(|undecodable| undecodable.key));
        let has_intent_live = match &status.owner {
            Some(owner) => driver.journal.has_intent_for_live(&owner.claim_uid, &owner.pv_name).await?,
            None => false,
        };
        self.context.restore_check.detect_live().await?;
        let has_marker = deletion_freeze::is_frozen_live(writer, namespace).await?;
        if has_marker || deletion_freeze::is_frozen(&self.context.cache) {
            return Ok(frozen());
        }
        let has_intent = |owner: &VolumeOwner| {
            has_intent_live || driver.journal.has_intent_for(&owner.claim_uid, &owner.pv_name)
        };
        let input =
            self.classification_input(&driver.backend.description().name, &has_intent, None, self.now());
        let classification = classify_with_history(&input, &status, history);
        Ok(rules::decide_deletion(&DeletionInput {
            volume: Some((&status, classification)),
            unreadable,
            unreadable_claim: self.context.cache.claims.undecodable_key(),
            is_started,
        }))
    }

    async fn find_volume(
        &self,
        driver: &ManagedDriver,
        handle: &VolumeHandle,
    ) -> Result<Option<VolumeStatus>, ListingError> {
        let mut pages = VolumePages::new(
            &*driver.backend,
            self.context.calls.call(&self.context.term, Secrets::default()),
        );
        while let Some(page) = pages.next().await? {
            if let Some(found) = page.into_iter().find(|status| status.volume.handle == *handle) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Replaces the request, whose encoding is `text`, with its response. A newer request in `delete` is
    /// kept. A deleted volume is also removed from the report, and an event on the ConfigMap reports its
    /// deletion.
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
                "Deleted orphaned volume {handle}, requested by {requested_by}: {}",
                response.message
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
