//! WGSL to naga's module: read, checked, and complaints with their place.

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, Span};

use super::Refusal;
use super::ir::Site;

/// A text that was read and checked.
pub(crate) struct Parsed {
    pub(crate) text: String,
    pub(crate) module: Module,
    pub(crate) info: ModuleInfo,
}

/// What kernels may use of naga's language; the rest is refused by the validator in its own words.
fn capabilities() -> Capabilities {
    Capabilities::IMMEDIATES
        | Capabilities::FLOAT64
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
}

impl Parsed {
    /// Reads and checks.
    ///
    /// # Errors
    /// What is wrong, with line and column.
    pub(crate) fn new(text: &str) -> Result<Self, Refusal> {
        let module = naga::front::wgsl::parse_str(text).map_err(|error| {
            let span = error.labels().next().map(|(span, _)| span);
            let label = error.labels().next().map(|(_, label)| label.to_owned()).unwrap_or_default();
            let what = match label.as_str() {
                "" => error.message().to_owned(),
                label => format!("{} ({label})", error.message()),
            };
            Refusal { what, site: site(text, span), is_malformed: true }
        })?;
        let mut validator = Validator::new(ValidationFlags::all(), capabilities());
        let info = validator.validate(&module).map_err(|error| {
            let span = error.spans().next().map(|(span, _)| *span);
            let what = in_one_line(error.as_inner());
            Refusal { what, site: site(text, span), is_malformed: true }
        })?;
        Ok(Self { text: text.to_owned(), module, info })
    }

    /// Where a span begins.
    pub(crate) fn site(&self, span: Span) -> Site {
        site(&self.text, Some(span))
    }
}

fn site(text: &str, span: Option<Span>) -> Site {
    span.filter(Span::is_defined).map_or_else(Site::default, |span| {
        let location = span.location(text);
        Site { line: location.line_number, column: location.line_position }
    })
}

/// An error and its causes.
pub(super) fn in_one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text.replace('\n', " ")
}
