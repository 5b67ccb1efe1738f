"""`POST /v1/audio/transcriptions` and `POST /v1/audio/speech` of the fake model server.

The transcript is the text after `SAYS:` in the recording's bytes, or empty. Models named `whisper…` report usage in
seconds, one for every 1,000 bytes. Other models report tokens: ten for each of these seconds and one for each word. A
spoken text is the first bytes of its format, the voice, and the text after `SAYS:`.
"""

from aiohttp import web

from tests.fakes.labkit import j
from tests.fakes.llm_http import Call
from tests.fakes.llm_legality import Json

_MARK = b"SAYS:"
FORMATS = (".flac", ".m4a", ".mp3", ".mp4", ".mpeg", ".mpga", ".oga", ".ogg", ".wav", ".webm")


async def read_recording(request: web.Request) -> Json:
    """Return the form as recorded in the journal: the file's name and size, and its spoken text."""
    form = await request.post()
    file = form.get("file")
    if not isinstance(file, web.FileField):
        return {"model": str(form.get("model", ""))}
    with file.file:
        data = file.file.read()
    said = data.partition(_MARK)[2].decode()
    return {"model": str(form.get("model", "")), "name": file.filename, "bytes": len(data), "said": said}


async def transcriptions(call: Call) -> web.Response:
    """Return the transcript of the recording."""
    body = call.body
    if "name" not in body or not str(body["name"]).lower().endswith(FORMATS):
        error = {"message": "Invalid file format.", "type": "invalid_request_error", "param": "file", "code": None}
        return j({"error": error}, 400)
    seconds = max(1, body["bytes"] // 1_000)
    usage: Json = {"type": "duration", "seconds": seconds}
    if not call.model.startswith("whisper"):
        words = len(str(body["said"]).split())
        usage = {
            "type": "tokens",
            "input_tokens": 10 * seconds,
            "output_tokens": words,
            "total_tokens": 10 * seconds + words,
        }
    return j({"text": body["said"], "usage": usage})


FIRST_BYTES = {"opus": b"OggS", "mp3": b"ID3", "wav": b"RIFF"}


async def speech(call: Call) -> web.Response:
    """Return a recording of the text. Models named `…-mp3` refuse all other formats."""
    body = call.body
    if call.model.endswith("-mp3") and body["response_format"] != "mp3":
        return j({"detail": [{"loc": ["body", "response_format"], "msg": "Input should be 'mp3'"}]}, 422)
    first = FIRST_BYTES[body["response_format"]]
    return web.Response(body=first + f" {body['voice']} SAYS:{body['input']}".encode(), content_type="audio/ogg")
