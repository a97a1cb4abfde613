//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use deltamux_engine::{VariantInfo, VariantState};
use serde::Serialize;

use crate::app::SharedState;
use crate::errors::ApiError;

/// A model as OpenAI describes it, and what there is to know beyond that.
#[derive(Debug, Serialize)]
pub struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The base, for variants.
    parent: Option<String>,
    /// Tokens of prompt and completion at most.
    max_model_len: usize,
    /// Content digest of the weights, when it is known.
    generation: Option<String>,
    /// `registered`, `loading`, `resident`, or `refused` with `why`.
    #[serde(flatten)]
    state: VariantState,
    /// Bytes in memory when resident.
    bytes: u64,
}

/// The list of models.
#[derive(Debug, Serialize)]
pub struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

fn model(info: VariantInfo, created: u64, max_model_len: usize) -> Model {
    Model {
        id: info.name,
        object: "model",
        created,
        owned_by: "deltamux",
        parent: info.parent,
        max_model_len,
        generation: Some(info.generation).filter(|generation| !generation.is_empty()),
        state: info.state,
        bytes: info.bytes,
    }
}

/// All models, the base first.
pub async fn list(State(shared): SharedState) -> Result<Json<ModelList>, ApiError> {
    let engine = shared.engine()?;
    let length = engine.max_model_len();
    let data = engine
        .variants()
        .into_iter()
        .map(|info| model(info, shared.created, length))
        .collect();
    Ok(Json(ModelList { object: "list", data }))
}

/// One model.
pub async fn retrieve(
    State(shared): SharedState,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    // A name that is no UTF-8 is the name of no model.
    let Path(id) = id.map_err(|rejection| ApiError::model_not_found(&rejection.body_text()))?;
    let engine = shared.engine()?;
    let info = engine
        .variants()
        .into_iter()
        .find(|info| info.name == id)
        .ok_or_else(|| ApiError::model_not_found(&id))?;
    Ok(Json(model(info, shared.created, engine.max_model_len())))
}
