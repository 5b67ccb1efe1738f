"""Texts that try to run a script or to request another address, wherever a page shows what people and models write."""

CORPUS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onfocus=alert(1) autofocus x='",
    "<details open ontoggle=alert(1)>",
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "<a href=javascript:alert(1)>alert</a>",
    "<math><mi xlink:href='javascript:alert(1)'>alert</mi></math>",
    "<b hx-on:load=alert(1) hx-get=/chats hx-trigger=load>alert</b>",
    "<hx-partial hx-target='#heading'>alert</hx-partial>",
    "</title></textarea></style><script>alert(1)</script>",
    '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "<style>@import 'https://elsewhere.invalid/alert.css';</style>",
    "<link rel=stylesheet href=https://elsewhere.invalid/alert.css>",
    "<base href=https://elsewhere.invalid/><meta http-equiv=refresh content='0;url=https://elsewhere.invalid/alert'>",
    "<form action=https://elsewhere.invalid><button>alert</button></form>",
    "{{ cycler.__init__.__globals__ }} ${alert(1)}",
    "data: alert\rid: 9\revent: alert\rdata: <script>alert(1)</script>",
    "\u202e<\u017fcript>alert(1)</\u017fcript>",
)
"""Texts for every surface. Each contains the word `alert`, and opens a dialog if it runs."""

MARKDOWN = "\n\n".join(
    (
        *CORPUS,
        "[alert](javascript:alert(1)) [alert](JaVa\tScRiPt:alert(1)) [alert](&#106;avascript:alert(1))",
        "<javascript:alert(1)> [alert](data:text/html,<script>alert(1)</script>) [alert](vbscript:alert(1))",
        "[r]\n\n[r]: javascript:alert(1)",
        '![alert](x" onerror="alert(1)) ![alert](https://elsewhere.invalid/alert.png)',
        r"$\href{javascript:alert(1)}{x}$ $\text{<img src=x onerror=alert(1)>}$",
        r"\(\unicode{<script>alert(1)</script>}\)",
        "$$</math><script>alert(1)</script>$$",
        '```"><img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```',
        "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
        "x[^<img src=x onerror=alert(1)>]\n\n[^<img src=x onerror=alert(1)>]: <script>alert(1)</script>",
    )
)
"""The corpus, and texts that are dangerous only in Markdown and formulas."""

DANGER = r"""const found = [];
for (const one of document.querySelectorAll("body *")) {
  const attributes = [...one.attributes];
  if (one.matches("script, iframe, object, embed, base, meta, link, style, hx-partial, img[src*='//elsewhere']")
      || attributes.some(({ name }) => /^(on|hx-on|srcdoc)/i.test(name))
      || attributes.some(({ name, value }) => /^(xlink:href|href|src|action|formaction)$/.test(name)
        && /^\s*(javascript|vbscript|data):/i.test(value))
      || (one.matches("form") && one.action && new URL(one.action).origin !== location.origin)
      || (one.closest("[hx-ignore]") && attributes.some(({ name }) => name.startsWith("hx-") && name !== "hx-ignore")))
    found.push(one.outerHTML.slice(0, 200));
}
return found"""
"""Script that returns the elements of a page that could run a script or request another address."""
