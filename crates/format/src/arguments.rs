//! What operators make of their arguments.

use std::sync::Arc;

use serde_json::Value;

use crate::names;
use crate::operator::{
    AddressPart, CertificateField, Conversion, FilterStateFormat, FormatPart, GrpcStatusFormat, HostSource, Operator,
    PathSource, Precision, TimePoint,
};
use crate::parse::{Command, FormatError, Resolved, Surroundings};

impl Command<'_> {
    /// The operator, or the text that it stands for.
    pub(crate) fn resolve(&self, surroundings: &Surroundings<'_>) -> Result<Resolved, FormatError> {
        match self.name {
            "ENVIRONMENT" => self.environment(surroundings).map(Resolved::Literal),
            "ACCESS_LOG_TYPE" if self.argument.is_none() => Ok(Resolved::Literal(surroundings.log_type.to_owned())),
            // Flags of filters that are not here.
            "CUSTOM_FLAGS" if self.argument.is_none() => Ok(Resolved::Literal(String::new())),
            _ => self.operator(surroundings).map(Resolved::Operator),
        }
    }

    fn operator(&self, surroundings: &Surroundings<'_>) -> Result<Operator, FormatError> {
        let without = names::plain(self.name);
        if let Some(operator) = without {
            return match self.argument {
                None => Ok(operator),
                Some(_) => Err(self.wrong_argument("takes no argument")),
            };
        }
        if let Some((of, part)) = names::address(self.name) {
            return Ok(Operator::Address(of, self.address_part(part)?));
        }
        if let Some(mut certificate) = names::certificate(self.name) {
            certificate.field = self.certificate_field(certificate.field)?;
            return Ok(Operator::Certificate(certificate));
        }
        Ok(match self.name {
            "START_TIME" => Operator::StartTime(self.text().map(Into::into)),
            "EMIT_TIME" => Operator::EmitTime(self.text().map(Into::into)),
            "REQ" | "REQUEST_HEADER" => self.header(Operator::Req)?,
            "REQ_WITHOUT_QUERY" => self.header(Operator::ReqWithoutQuery)?,
            "RESP" | "RESPONSE_HEADER" => self.header(Operator::Resp)?,
            "TRAILER" | "RESPONSE_TRAILER" => self.header(Operator::Trailer)?,
            "RESPONSE_CODE_DETAILS" => Operator::ResponseCodeDetails(match self.text() {
                Some("ALLOW_WHITESPACES") => Conversion::Verbatim,
                _ => Conversion::OneWord,
            }),
            "GRPC_STATUS" => Operator::GrpcStatus(match self.argument {
                None | Some("CAMEL_STRING") => GrpcStatusFormat::Camel,
                Some("SNAKE_STRING") => GrpcStatusFormat::Snake,
                Some("NUMBER") => GrpcStatusFormat::Number,
                Some(_) => return Err(self.wrong_argument("takes CAMEL_STRING, SNAKE_STRING or NUMBER")),
            }),
            "COMMON_DURATION" => self.common_duration()?,
            "FILTER_STATE" if self.argument.is_some() => self.filter_state()?,
            "DYNAMIC_METADATA" => self.dynamic_metadata(self.argument)?,
            "METADATA" => self.metadata()?,
            "PATH" => self.path()?,
            "QUERY_PARAM" => match self.text() {
                Some(name) => Operator::QueryParam(name.into()),
                None => return Err(self.wrong_argument("takes the name of a parameter")),
            },
            "QUERY_PARAMS" => match self.text() {
                None | Some("ORIG" | "DECODED") => Operator::QueryParams,
                Some(_) => return Err(self.wrong_argument("takes ORIG or DECODED")),
            },
            "REQUESTED_SERVER_NAME" => Operator::RequestedServerName(self.host_source()?),
            "CEL" | "TYPED_CEL" => self.expression(surroundings)?,
            "COALESCE" => self.coalesce(surroundings)?,
            // Nothing sets it in this build, so `-` is correct.
            "UPSTREAM_FILTER_STATE" if self.argument.is_some() => Operator::Unset,
            "FILTER_STATE" | "UPSTREAM_FILTER_STATE" => return Err(self.wrong_argument("takes a key")),
            _ => return Err(self.unknown()),
        })
    }

    /// The argument, if it is not empty.
    fn text(&self) -> Option<&str> {
        self.argument.filter(|text| !text.is_empty())
    }

    fn environment(&self, surroundings: &Surroundings<'_>) -> Result<String, FormatError> {
        let name = self.text().ok_or_else(|| self.wrong_argument("takes the name of an environment variable"))?;
        let mut value = (surroundings.variable)(name).unwrap_or_else(|| "-".into());
        if let Some(limit) = self.max_length {
            value.truncate(value.floor_char_boundary(limit));
        }
        Ok(value)
    }

    fn address_part(&self, part: AddressPart) -> Result<AddressPart, FormatError> {
        match (part, self.text()) {
            (part, None) => Ok(part),
            (AddressPart::WithoutPort, Some(bits)) => match bits.parse() {
                Ok(bits) if bits <= 128 => Ok(AddressPart::Masked(bits)),
                _ => Err(self.wrong_argument("takes a number of bits, 0 to 32, or to 128 for IPv6")),
            },
            _ => Err(self.wrong_argument("takes no argument")),
        }
    }

    fn certificate_field(&self, field: CertificateField) -> Result<CertificateField, FormatError> {
        match (field, self.text()) {
            (field, None) => Ok(field),
            (CertificateField::NotBefore(_), Some(format)) => Ok(CertificateField::NotBefore(Some(format.into()))),
            (CertificateField::NotAfter(_), Some(format)) => Ok(CertificateField::NotAfter(Some(format.into()))),
            _ => Err(self.wrong_argument("takes no argument")),
        }
    }

    fn header(&self, of: fn(Box<str>, Option<Box<str>>) -> Operator) -> Result<Operator, FormatError> {
        let wrong = || self.wrong_argument(format!("takes a header name, or two: %{}(FIRST?SECOND)%", self.name));
        let argument = self.argument.ok_or_else(wrong)?;
        let mut names = argument.split('?').map(str::to_ascii_lowercase);
        let (first, second, third) = (names.next().unwrap_or_default(), names.next(), names.next());
        let named = |name: &String| {
            let bytes = name.strip_prefix(':').unwrap_or(name).bytes();
            !name.is_empty() && bytes.clone().all(|b| b.is_ascii_graphic() && !b"()<>@,;:\\\"/[]={}%".contains(&b))
        };
        if third.is_some() || !named(&first) || !second.iter().all(named) {
            return Err(wrong());
        }
        Ok(of(first.into(), second.map(Into::into)))
    }

    /// Filter state objects have no accessible fields.
    fn filter_state(&self) -> Result<Operator, FormatError> {
        let argument = self.argument.unwrap_or_default();
        let (key, format) = argument.split_once(':').unwrap_or((argument, "TYPED"));
        let format = match format {
            "TYPED" => FilterStateFormat::Typed,
            "PLAIN" => FilterStateFormat::Plain,
            field if let Some(field) = field.strip_prefix("FIELD:") => {
                return Ok(Operator::FilterStateField(key.into(), field.into()));
            }
            _ => return Err(self.wrong_argument("takes a key, and TYPED, PLAIN or FIELD:NAME behind a colon")),
        };
        Ok(match (key, format) {
            ("envoy.tcp_proxy.propagate_response_headers", FilterStateFormat::Typed) => Operator::TunnelHeaders,
            ("envoy.tcp_proxy.propagate_response_trailers", FilterStateFormat::Typed) => Operator::TunnelTrailers,
            // These have no plain form, as in Envoy.
            ("envoy.tcp_proxy.propagate_response_headers" | "envoy.tcp_proxy.propagate_response_trailers", _) => {
                Operator::Unset
            }
            (key, format) => Operator::FilterState(key.into(), format),
        })
    }

    fn dynamic_metadata(&self, argument: Option<&str>) -> Result<Operator, FormatError> {
        match filter_and_path(argument) {
            Some((filter, path)) => Ok(Operator::DynamicMetadata { filter, path }),
            None => Err(self.wrong_argument("takes a filter's name, and keys behind colons")),
        }
    }

    fn metadata(&self) -> Result<Operator, FormatError> {
        let expected = "takes DYNAMIC, a filter's name, and keys behind colons";
        let (kind, rest) = self.argument.and_then(|argument| argument.split_once(':')).unwrap_or_default();
        match (kind, filter_and_path(Some(rest))) {
            ("DYNAMIC", Some(_)) => self.dynamic_metadata(Some(rest)),
            ("ROUTE" | "CLUSTER" | "UPSTREAM_HOST" | "LISTENER" | "LISTENER_FILTER_CHAIN" | "VIRTUAL_HOST", _) => {
                let name = format!("{}({kind}:…)", self.name);
                Err(FormatError::OnlyEnvoy { at: self.at, name })
            }
            _ => Err(self.wrong_argument(expected)),
        }
    }

    fn path(&self) -> Result<Operator, FormatError> {
        let (query, source) =
            self.argument.unwrap_or_default().split_once(':').unwrap_or((self.argument.unwrap_or_default(), ""));
        let query = match query {
            "" | "WQ" => Some(true),
            "NQ" => Some(false),
            _ => None,
        };
        let parsed = query.zip(path_source(source, "PATH", "ORIG_OR_PATH"));
        let expected = "takes WQ or NQ, and ORIG, PATH or ORIG_OR_PATH behind a colon";
        parsed.map(|(query, source)| Operator::Path { source, query }).ok_or_else(|| self.wrong_argument(expected))
    }

    fn host_source(&self) -> Result<HostSource, FormatError> {
        let argument = self.argument.unwrap_or_default();
        let (order, source) = argument.split_once(':').unwrap_or((argument, ""));
        let parsed = path_source(source, "HOST", "ORIG_OR_HOST").and_then(|host| match order {
            "" | "SNI_ONLY" => Some(HostSource { sni: true, host: None }),
            "SNI_FIRST" => Some(HostSource { sni: true, host: Some(host) }),
            "HOST_FIRST" => Some(HostSource { sni: false, host: Some(host) }),
            _ => None,
        });
        let expected = "takes SNI_ONLY, SNI_FIRST or HOST_FIRST, and ORIG, HOST or ORIG_OR_HOST behind a colon";
        parsed.ok_or_else(|| self.wrong_argument(expected))
    }

    fn expression(&self, surroundings: &Surroundings<'_>) -> Result<Operator, FormatError> {
        let text = self.text().ok_or_else(|| self.wrong_argument("takes an expression (CEL)"))?;
        let expression = evenkeel_cel::Expression::compile(text)
            .map_err(|error| self.wrong_argument(format!("has an expression that does not compile: {error}")))?;
        let node = Arc::clone(&surroundings.node);
        Ok(Operator::Cel { expression: Arc::new(expression), node, typed: self.name == "TYPED_CEL" })
    }

    /// `{"operators": ["NAME", {"command": "NAME", "param": "…", "max_length": 1}]}`
    fn coalesce(&self, surroundings: &Surroundings<'_>) -> Result<Operator, FormatError> {
        let wrong = || {
            let form = "takes {\"operators\": [\"NAME\", {\"command\": \"NAME\", \"param\": \"ARGUMENT\", \"max_length\": 9}]}";
            self.wrong_argument(form)
        };
        let config: Value = serde_json::from_str(self.text().unwrap_or_default()).map_err(|_| wrong())?;
        let operators = config.get("operators").and_then(Value::as_array).filter(|all| !all.is_empty());
        let parts = operators.ok_or_else(wrong)?.iter().map(|operator| {
            let name = operator.as_str().or_else(|| operator.get("command")?.as_str()).ok_or_else(wrong)?;
            let argument = operator.get("param").map(|param| param.as_str().ok_or_else(wrong)).transpose()?;
            let limit = operator.get("max_length").map(|limit| limit.as_u64().ok_or_else(wrong)).transpose()?;
            let max_length = limit.and_then(|limit| usize::try_from(limit).ok());
            // Nesting would need a limit, and has no use: the list of the inner one can be part of the outer one.
            if name == self.name {
                return Err(self.wrong_argument("cannot be nested"));
            }
            Ok(match (Command { at: self.at, name, argument, max_length }).resolve(surroundings)? {
                Resolved::Literal(text) => FormatPart::Literal(text.into()),
                Resolved::Operator(operator) => FormatPart::Operator { operator, max_length },
            })
        });
        parts.collect::<Result<_, _>>().map(Operator::Coalesce)
    }

    fn common_duration(&self) -> Result<Operator, FormatError> {
        let parts: Vec<&str> = self.argument.unwrap_or_default().split(':').collect();
        let point = |name: &str| TimePoint::ALL.iter().find(|(known, _)| *known == name).map(|(_, point)| *point);
        let precision = |name: &str| {
            Some(match name {
                "ms" => Precision::Millis,
                "us" => Precision::Micros,
                "ns" => Precision::Nanos,
                _ => return None,
            })
        };
        let operator = match parts.as_slice() {
            [start, end, unit] => point(start).zip(point(end)).zip(precision(unit)),
            _ => None,
        };
        let ((start, end), precision) = operator.ok_or_else(|| {
            self.wrong_argument(
                "takes START:END:PRECISION: two of DS_RX_BEG, DS_RX_END, US_CX_BEG, US_CX_END, US_HS_END, US_TX_BEG, \
                 US_TX_END, US_RX_BEG, US_RX_BODY_BEG, US_RX_END, DS_TX_BEG, DS_TX_END, ON_DEMAND_BEG and ON_DEMAND_END, and \
                 ms, us or ns",
            )
        })?;
        Ok(Operator::CommonDuration { start, end, precision })
    }
}

/// `FILTER:KEY:KEY`
fn filter_and_path(argument: Option<&str>) -> Option<(Box<str>, Vec<Box<str>>)> {
    let mut names = argument.unwrap_or_default().split(':');
    let filter = names.next().filter(|filter| !filter.is_empty())?;
    Some((filter.into(), names.map(Into::into).collect()))
}

fn path_source(text: &str, current: &str, either: &str) -> Option<PathSource> {
    match text {
        "ORIG" => Some(PathSource::Original),
        text if text == current => Some(PathSource::Current),
        text if text == either || text.is_empty() => Some(PathSource::OriginalOrCurrent),
        _ => None,
    }
}
