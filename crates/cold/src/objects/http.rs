//! HTTP for object stores: answers that are read whole have a bound.
//!
//! The library reads listings and errors into memory, however long they are. An endless answer of a
//! broken or hostile store must not take the server's memory. Blocks are read by the piece elsewhere.

use futures::stream::StreamExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::io;

/// Longest answer that is read whole. A page of a listing has a thousand names.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Makes clients with bounded answers.
#[derive(Debug, Default)]
pub struct Bounded;

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Client(HttpClient);

#[async_trait::async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Listings have a query; requests for an object's content have none.
        let is_content = request.uri().query().is_none();
        let (head, body) = self.0.execute(request).await?.into_parts();
        if is_content && head.status.is_success() {
            return Ok(HttpResponse::from_parts(head, body));
        }
        let (mut pieces, mut whole) = (body.bytes_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            if whole.len() + piece.len() > ANSWER_BYTES_MAX {
                let fact = format!("an answer has more than {ANSWER_BYTES_MAX} bytes");
                return Err(HttpError::new(HttpErrorKind::Decode, io::Error::other(fact)));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(HttpResponse::from_parts(head, whole.into()))
    }
}
