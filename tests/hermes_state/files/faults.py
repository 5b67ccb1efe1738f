"""Errors of real object stores, as documented or reported. Names and ids are invented.

`kind` says how a start must treat an error: `wrong` needs a change of the configuration or at the provider, `later` may
go away by itself. `word` must be in the operator's message.
"""

from dataclasses import dataclass
from typing import Literal

AWS = "https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An answer of an object store to any request."""

    status: int
    code: str
    message: str = ""
    more: str = ""
    """Elements after the message."""
    location: str | None = None
    kind: Literal["wrong", "later"]
    word: str
    source: str

    @property
    def body(self) -> str:
        """Document in the answer."""
        if not self.code:
            return self.message
        text = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message>{self.more}"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}<RequestId>1D</RequestId><HostId>1D</HostId></Error>'

    @property
    def name(self) -> str:
        """Name of the test case."""
        return f"{self.status}-{self.code or self.word}"


FAULTS = [
    # Keys
    Fault(
        status=403,
        code="InvalidAccessKeyId",
        message="The AWS Access Key Id you provided does not exist in our records.",
        more="<AWSAccessKeyId>KEYIDOFTESTS</AWSAccessKeyId>",
        kind="wrong",
        word="keys",
        source="https://github.com/versity/versitygw/issues/2042",
    ),
    Fault(
        status=403,
        code="SignatureDoesNotMatch",
        message="The request signature we calculated does not match the signature you provided. "
        "Check your key and signing method.",
        more="<AWSAccessKeyId>KEYIDOFTESTS</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256</StringToSign>",
        kind="wrong",
        word="keys",
        source="https://github.com/minio/minio/issues/9973",
    ),
    Fault(
        status=403,
        code="AccessDenied",
        message="Access Denied.",
        kind="wrong",
        word="keys",
        source="https://github.com/nextcloud/server/issues/36427",
    ),
    Fault(
        status=403,
        code="AccessDenied",
        message="Access denied.",
        more="<Details>Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
        "</Details>",
        kind="wrong",
        word="keys",
        source="https://github.com/discord/discord-example-app/issues/60",
    ),
    Fault(
        status=403,
        code="AuthorizationPermissionMismatch",
        message="This request is not authorized to perform this operation using this permission.\nRequestId:1D",
        kind="wrong",
        word="keys",
        source="https://github.com/microsoft/AzureStorageExplorer/issues/3767",
    ),
    Fault(
        status=401,
        code="Unauthorized",
        message="Unauthorized",
        kind="wrong",
        word="keys",
        source="https://github.com/remotely-save/remotely-save/issues/706",
    ),
    Fault(
        status=400,
        code="ExpiredToken",
        message="The provided token has expired.",
        more="<Token-0>TOKENOFTESTS</Token-0>",
        kind="wrong",
        word="keys",
        source="https://github.com/romange/helio/issues/15",
    ),
    Fault(
        status=400,
        code="InvalidToken",
        message="The provided token is malformed or otherwise not valid.",
        kind="wrong",
        word="keys",
        source=AWS,
    ),
    # The clock of this machine
    Fault(
        status=403,
        code="RequestTimeTooSkewed",
        message="The difference between the request time and the current time is too large.",
        more="<RequestTime>20230104T200955Z</RequestTime><ServerTime>2023-01-04T20:41:18Z</ServerTime>",
        kind="later",
        word="clock",
        source="https://github.com/JuliaCloud/AWS.jl/issues/598",
    ),
    # Place
    Fault(
        status=404,
        code="NoSuchBucket",
        message="The specified bucket does not exist.",
        more="<BucketName>lab</BucketName>",
        kind="wrong",
        word="create the bucket",
        source=AWS,
    ),
    Fault(
        status=404,
        code="ContainerNotFound",
        message="The specified container does not exist.\nRequestId:1D",
        kind="wrong",
        word="create the bucket",
        source="https://github.com/Azure/azure-cli/issues/10315",
    ),
    Fault(
        status=400,
        code="AuthorizationHeaderMalformed",
        message="The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-central-1'",
        more="<Region>eu-central-1</Region>",
        kind="wrong",
        word="region",
        source="https://github.com/jsoma/flatware/issues/10",
    ),
    Fault(
        status=400,
        code="AuthorizationHeaderMalformed",
        message="The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-nl-1'",
        kind="wrong",
        word="region",
        source="https://github.com/s3fs-fuse/s3fs-fuse/issues/1186",
    ),
    Fault(
        status=400,
        code="IllegalLocationConstraintException",
        message="You are trying to access a bucket from a different Region than where the bucket exists.",
        kind="wrong",
        word="region",
        source="https://docs.aws.amazon.com/AmazonS3/latest/userguide/ErrorCodeBilling.html",
    ),
    Fault(
        status=301,
        code="PermanentRedirect",
        message="The bucket you are attempting to access must be addressed using the specified endpoint. "
        "Please send all future requests to this endpoint.",
        more="<Endpoint>lab.s3-us-west-2.amazonaws.com</Endpoint><Bucket>lab</Bucket>",
        kind="wrong",
        word="region",
        source="https://github.com/awslabs/mountpoint-s3/issues/1",
    ),
    Fault(
        status=403,
        code="AccessDenied",
        message="S3 API Request made to Console port. S3 Requests should be sent to API port.",
        kind="wrong",
        word="endpoint",
        source="https://github.com/pivotal-sadubois/tanzu-demo-hub/issues/13",
    ),
    Fault(
        status=405,
        code="MethodNotAllowed",
        message="The specified method is not allowed against this resource.",
        kind="wrong",
        word="MethodNotAllowed",
        source=AWS,
    ),
    Fault(
        status=200,
        code="",
        message="<!doctype html><title>Welcome</title>",
        kind="wrong",
        word="endpoint",
        source="https://github.com/minio/minio-js/issues/1054",
    ),
    # Unsupported features
    Fault(
        status=501,
        code="NotImplemented",
        message="A header you provided implies functionality that is not implemented.",
        kind="wrong",
        word="NotImplemented",
        source=AWS,
    ),
    # Space
    Fault(
        status=507,
        code="XMinioStorageFull",
        message="Storage backend has reached its minimum free disk threshold. Please delete a few objects to proceed.",
        kind="later",
        word="XMinioStorageFull",
        source="https://github.com/minio/minio/issues/6795",
    ),
    Fault(
        status=400,
        code="XMinioAdminBucketQuotaExceeded",
        message="Bucket quota exceeded",
        kind="later",
        word="QuotaExceeded",
        source="https://github.com/minio/minio-py/issues/1313",
    ),
    Fault(
        status=403,
        code="QuotaExceeded",
        kind="later",
        word="QuotaExceeded",
        source="https://github.com/yandex-cloud/geesefs/pull/110",
    ),
    # Load and failures
    Fault(
        status=503,
        code="SlowDown",
        message="Please reduce your request rate.",
        kind="later",
        word="SlowDown",
        source="https://github.com/pingcap/tiflash/issues/10538",
    ),
    Fault(
        status=503,
        code="SlowDown",
        message="Reduce your request rate.",
        kind="later",
        word="SlowDown",
        source="https://github.com/thephpleague/flysystem-aws-s3-v3/issues/278",
    ),
    Fault(
        status=429,
        code="SlowDown",
        message="Please reduce your request rate.",
        more="<Details>Changing object lab/1 too quickly, please slow down</Details>",
        kind="later",
        word="SlowDown",
        source="https://github.com/nextcloud/server/issues/12537",
    ),
    Fault(
        status=503,
        code="XMinioServerNotInitialized",
        message="Server not initialized, please try again.",
        kind="later",
        word="XMinioServerNotInitialized",
        source="https://github.com/minio/minio/issues/2577",
    ),
    Fault(
        status=500,
        code="InternalError",
        message="We encountered an internal error. Please try again.",
        kind="later",
        word="InternalError",
        source=AWS,
    ),
    Fault(
        status=400,
        code="RequestTimeout",
        message="Your socket connection to the server was not read from or written to within the timeout period.",
        kind="later",
        word="RequestTimeout",
        source=AWS,
    ),
    Fault(
        status=502,
        code="",
        message="<html><head><title>502 Bad Gateway</title></head></html>",
        kind="later",
        word="502",
        source="https://nginx.org/en/docs/http/ngx_http_proxy_module.html",
    ),
]
