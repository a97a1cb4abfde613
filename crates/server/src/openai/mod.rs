//! OpenAI's API. Each endpoint has its `types` (what is asked and answered), `validate` (JSON to types, refusals name
//! the field), `convert` (types to the engine's requests) and `respond` (the engine's events to JSON).

pub mod chat;
pub mod completions;
pub mod models;

mod completion_stream;
pub mod endpoint;
mod logprob;
mod lookup;
mod params;
mod sse;
mod usage;
mod whole;
