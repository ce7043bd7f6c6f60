//! One request, one volume: everything is read anew, then the driver is called, then the answer is written.

use cofferdam_backend::Call;
use cofferdam_cluster::{
    ApiError, EventType, OrphanReport, deletion_freeze, queue::Action, reflector::Scope,
};
use cofferdam_domain::{
    Volume, VolumeHandle,
    storage::{Ability, ErrorKind, Finality, VolumeOwner, VolumeStatus},
};
use serde_json::{Value, json};

use super::{
    listing::{ObservationHistory, VolumePages},
    report::{
        DELETE, DELETING, DeletionRequest, DeletionResponse, DeletionResult, REPORT, RESPONSE, ScanReport,
    },
    rules::{self, DeletionInput, DeletionVerdict},
    scan::{DriverScanState, OrphanScanner, classify_with_history},
};
use crate::context::ManagedDriver;

/// Why a volume could not be looked at; asked again later.
#[derive(Debug, thiserror::Error)]
enum VolumeLookupError {
    #[error("the driver's volumes cannot be listed: {0}")]
    Listing(String),
    #[error(transparent)]
    Read(#[from] ApiError),
}

/// What comes of one look at a request.
enum RequestStep {
    /// It is decided.
    Respond(DeletionResponse),
    /// Its beginning was written down, or was not.
    Started(Result<(), ApiError>),
    /// It has to be tried again.
    Retry,
}

impl OrphanScanner {
    /// The next effect for a request: its beginning, the driver call, or the answer. `Err` ends this run.
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
        // An answer to a request that was taken back meanwhile has nobody to read it.
        let pending_response = scan_state
            .pending_response
            .take()
            .filter(|response| response.request.as_ref() == request.as_ref().ok());
        let response = match (pending_response, request) {
            (Some(response), _) => response,
            (None, Err(message)) => self.refused_response(None, message),
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
            // What the driver has said once is not asked for again.
            scan_state.pending_response = Some(response);
        }
        Ok(written)
    }

    /// Decides and acts on a request.
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
                tracing::warn!(driver = %name, volume = %request.handle, %error, "a deletion waits");
                return RequestStep::Retry;
            }
        };
        match decision {
            DeletionVerdict::Refuse(why) => RequestStep::Respond(self.refused_response(Some(request), why)),
            DeletionVerdict::AlreadyDeleted => {
                let message = "the driver lists it no more".to_owned();
                RequestStep::Respond(self.response(Some(request), DeletionResult::Deleted, message))
            }
            DeletionVerdict::Delete if is_started => {
                self.delete_volume(driver, request).await.map_or(RequestStep::Retry, RequestStep::Respond)
            }
            // After it everything is looked at once more: the API took this write, so the process is not cut
            // off from it.
            DeletionVerdict::Delete => {
                let data = json!({DELETING: json!(request).to_string()});
                RequestStep::Started(self.write(name, Some(config_map), data).await.map(drop))
            }
        }
    }

    /// The effect that cannot be taken back.
    async fn delete_volume(
        &self,
        driver: &ManagedDriver,
        request: DeletionRequest,
    ) -> Option<DeletionResponse> {
        let name = &driver.backend.description().name;
        tracing::info!(driver = %name, volume = %request.handle, by = %request.requested_by, "deleting an orphan");
        let call = Call::with_deadline(self.context.settings.timeout);
        match driver.backend.delete_volume(call, request.handle.clone()).await {
            Ok(()) => Some(self.response(Some(request), DeletionResult::Deleted, "deleted".to_owned())),
            Err(error) if error.finality != Finality::Final => {
                tracing::warn!(driver = %name, volume = %request.handle, %error, "deleting an orphan is tried again");
                None
            }
            Err(error) if error.kind == ErrorKind::NotFound => Some(self.response(
                Some(request),
                DeletionResult::Deleted,
                "the driver knows it no more".to_owned(),
            )),
            Err(error) => Some(self.refused_response(Some(request), format!("the driver refuses: {error}"))),
        }
    }

    /// Looks at everything that a deletion rests on, the cluster last: it is what may change while the driver
    /// lists.
    async fn decide_deletion(
        &self,
        driver: &ManagedDriver,
        request: &DeletionRequest,
        is_started: bool,
        history: &mut ObservationHistory,
    ) -> Result<DeletionVerdict, VolumeLookupError> {
        let (settings, writer) = (&self.context.settings, &self.context.writer);
        if !driver.backend.abilities().contains(&Ability::Listing) {
            return Ok(DeletionVerdict::Refuse(format!("the driver has no `{}`", Ability::Listing)));
        }
        let frozen = || DeletionVerdict::Refuse(rules::frozen_message(&settings.namespace));
        if deletion_freeze::is_frozen(&self.context.cache) {
            return Ok(frozen());
        }
        if let Some(message) = rules::expired_message(request, self.now()).filter(|_| !is_started) {
            return Ok(DeletionVerdict::Refuse(message));
        }
        let Some(status) =
            self.find_volume(driver, &request.handle).await.map_err(VolumeLookupError::Listing)?
        else {
            return Ok(rules::decide_deletion(&DeletionInput { volume: None, unreadable: None, is_started }));
        };
        let volumes = writer.list_scope::<Volume>(&Scope::default()).await?;
        let unreadable = volumes.into_iter().find_map(|volume| volume.err().map(|opaque| opaque.key));
        let has_recorded_intent = match &status.owner {
            Some(owner) => driver.journal.has_entry_for_live(&owner.claim_uid, &owner.pv_name).await?,
            None => false,
        };
        self.context.check_live().await?;
        if deletion_freeze::is_frozen_live(writer, &settings.namespace).await?
            || deletion_freeze::is_frozen(&self.context.cache)
        {
            return Ok(frozen());
        }
        let has_intent = |owner: &VolumeOwner| {
            has_recorded_intent || driver.journal.has_entry_for(&owner.claim_uid, &owner.pv_name)
        };
        let input =
            self.classification_input(&driver.backend.description().name, &has_intent, None, self.now());
        let classification = classify_with_history(&input, &status, history);
        Ok(rules::decide_deletion(&DeletionInput {
            volume: Some((&status, classification)),
            unreadable,
            is_started,
        }))
    }

    async fn find_volume(
        &self,
        driver: &ManagedDriver,
        handle: &VolumeHandle,
    ) -> Result<Option<VolumeStatus>, String> {
        let mut pages = VolumePages::new(&*driver.backend, self.context.settings.timeout);
        while let Some(page) = pages.next().await? {
            if let Some(found) = page.into_iter().find(|status| status.volume.handle == *handle) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Writes an answer in the place of its request, whose text this is.
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
            self.metrics.record_report(report);
        }
        if let Some(DeletionRequest { handle, requested_by, .. }) = deleted {
            let text =
                format!("Volume {handle}, an orphan, is gone as {requested_by} asked: {}", response.message);
            self.emit_event(driver, &map, EventType::Normal, "OrphanDeleted", text);
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
