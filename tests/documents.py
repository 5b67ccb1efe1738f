"""Documents as people send them. They are generated, so that each test names only what is special about one."""

import io
import zipfile
from collections.abc import Mapping, Sequence

_KINDS = {"docx": "word/document.xml", "xlsx": "xl/workbook.xml", "pptx": "ppt/presentation.xml"}
_RELS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def pdf(*pages: str) -> bytes:
    """Return a PDF file with a page of ASCII text for each argument. An empty text gives a page with only a drawing."""
    kids = " ".join(f"{2 * number + 4} 0 R" for number in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, text in enumerate(pages):
        lines = "".join(f"({line}) Tj T* " for line in text.split("\n"))
        content = f"BT /F 12 Tf 14 TL 20 760 Td {lines}ET" if text else "1 0 0 rg 50 50 300 300 re f"
        page = f"/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F 3 0 R>>>>/Contents {2 * number + 5} 0 R"
        objects += [f"<</Type/Page{page}>>", f"<</Length {len(content)}>>\nstream\n{content}\nendstream"]
    data, places = b"%PDF-1.7\n", list[int]()
    for number, body in enumerate(objects, start=1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"trailer<</Size {len(places) + 1}/Root 1 0 R>>\nstartxref\n{len(data)}\n%%EOF"
    return data + f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}".encode() + end.encode()


def office(kind: str, main: str, parts: Mapping[str, str] | None = None, targets: Sequence[str] = ()) -> bytes:
    """Return an Office file. The main part refers to `targets` by the ids `r0`, `r1` and so on."""
    folder, name = _KINDS[kind].split("/")
    types = {target: target.rpartition("/")[2].rstrip("0123456789.xml") for target in targets}
    types |= {"sharedStrings.xml": "sharedStrings", "styles.xml": "styles"}
    rels = "".join(
        f'<Relationship Id="r{number}" Type="{_RELS}/{types[target]}" Target="{target}"/>'
        for number, target in enumerate(targets)
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        link = f'<Relationship Id="a" Type="{_RELS}/officeDocument" Target="{_KINDS[kind]}"/>'
        archive.writestr("_rels/.rels", f"<Relationships>{link}</Relationships>")
        archive.writestr(_KINDS[kind], main)
        archive.writestr(f"{folder}/_rels/{name}.rels", f"<Relationships>{rels}</Relationships>")
        for path, text in (parts or {}).items():
            archive.writestr(f"{folder}/{path}", text)
    return buffer.getvalue()


def docx(body: str) -> bytes:
    """Return a Word file. `body` is XML with the prefix `w`."""
    return office("docx", f'<w:document xmlns:w="urn:w"><w:body>{body}</w:body></w:document>')


def xlsx(*sheets: tuple[str, str], shared: str = "", styles: str = "", state: str = "visible") -> bytes:
    """Return a workbook. Each sheet has a name and the XML of its rows."""
    names = [f"sheet{number}.xml" for number in range(len(sheets))]
    listed = "".join(f'<sheet name="{name}" state="{state}" r:id="r{at}"/>' for at, (name, _) in enumerate(sheets))
    parts = {
        name: f'<worksheet xmlns="urn:x"><sheetData>{rows}</sheetData></worksheet>'
        for name, (_, rows) in zip(names, sheets, strict=True)
    }
    parts |= {
        "sharedStrings.xml": f'<sst xmlns="urn:x">{shared}</sst>',
        "styles.xml": f'<styleSheet xmlns="urn:x">{styles}</styleSheet>',
    }
    main = f'<workbook xmlns="urn:x" xmlns:r="urn:r"><sheets>{listed}</sheets></workbook>'
    return office("xlsx", main, parts, [*names, "sharedStrings.xml", "styles.xml"])


def pptx(*slides: str) -> bytes:
    """Return a presentation with one paragraph on each slide."""
    names = [f"slide{number}.xml" for number in range(len(slides))]
    listed = "".join(f'<p:sldId r:id="r{number}"/>' for number in range(len(slides)))
    parts = {
        name: f'<p:sld xmlns:p="urn:p" xmlns:a="urn:a"><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sld>'
        for name, text in zip(names, slides, strict=True)
    }
    main = f'<p:presentation xmlns:p="urn:p" xmlns:r="urn:r"><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>'
    return office("pptx", main, parts, names)
