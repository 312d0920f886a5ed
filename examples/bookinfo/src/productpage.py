"""productpage: one page about one book, put together from details and reviews.

GET /productpage                                 the page
GET /login?username=NAME, /logout                who asks: the calls of the page say so in the header end-user
GET /api/v1/products[/0[/reviews|/ratings]]      the same as JSON
"""

import html
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from server import Handler, call, serve

TITLE = "The Comedy of Errors"
STAR_COLORS = {"black": "#111", "red": "#c00"}


class ProductPage(Handler):
    def answer(self, path):
        match path.strip("/").split("/"):
            case ["productpage"]:
                self.send_bytes(200, "text/html; charset=utf-8", self.page().encode())
            case ["login"]:
                name = parse_qs(urlsplit(self.path).query).get("username", [""])[0]
                self.log_in(name if name.isalnum() else "")
            case ["logout"]:
                self.log_in("")
            case ["api", "v1", "products"]:
                self.send_json(200, [{"id": 0, "title": TITLE}])
            case ["api", "v1", "products", "0"]:
                self.pass_on(call("details", "/details/0", self.caller()))
            case ["api", "v1", "products", "0", ("reviews" | "ratings") as part]:
                self.pass_on(call(part, f"/{part}/0", self.caller()))
            case _:
                self.send_json(404, {"error": "try /productpage"})

    def user(self):
        cookie = SimpleCookie(self.headers.get("cookie", "")).get("user")
        return cookie.value if cookie and cookie.value.isalnum() else ""

    def caller(self):
        headers = self.passed_on()
        headers.pop("end-user", None)  # who asks is known by the cookie alone
        if self.user():
            headers["end-user"] = self.user()
        return headers

    def log_in(self, name):
        cookie = f"user={name}; Path=/; HttpOnly" + ("" if name else "; Max-Age=0")
        self.send_bytes(302, "text/plain", b"", [("location", "/productpage"), ("set-cookie", cookie)])

    def pass_on(self, answered):
        status, value = answered
        self.send_json(status or 503, value if status == 200 else {"error": value})

    def page(self):
        user = html.escape(self.user())
        greeting = f'{user} · <a href="/logout">sign out</a>' if user else '<a href="/login?username=jason">sign in as jason</a>'
        return PAGE.format(title=TITLE, greeting=greeting, details=self.details(), reviews=self.reviews())

    def details(self):
        status, details = call("details", "/details/0", self.caller())
        if status != 200:
            return unavailable("product details", status, details)
        rows = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in details.items())
        return f"<dl>{''.join(rows)}</dl>"

    def reviews(self):
        status, reviews = call("reviews", "/reviews/0", self.caller())
        if status != 200:
            return unavailable("product reviews", status, reviews)
        quotes = (f"<blockquote>{html.escape(one['text'])}<footer>{html.escape(one['reviewer'])} {stars(one)}</footer></blockquote>"
                  for one in reviews["reviews"])
        return "".join(quotes) + f"<p><small>reviews served by {html.escape(reviews['podname'])}</small></p>"


def stars(review):
    rating = review.get("rating")
    if rating is None:
        return ""
    if "error" in rating:
        return f"<i>{html.escape(rating['error'])}</i>"
    return f'<b style="color: {STAR_COLORS.get(rating["color"], "#111")}">{"★" * rating["stars"]}{"☆" * (5 - rating["stars"])}</b>'


def unavailable(what, status, reason):
    return f"<p><b>Sorry, {what} are currently unavailable for this book.</b> ({status or 'no answer'}: {html.escape(str(reason))})</p>"


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
dl {{ display: grid; grid-template-columns: 8rem 1fr }} blockquote {{ margin: 1rem 0; border-left: 3px solid #ccc; padding-left: 1rem }}</style>
<p style="text-align: right">{greeting}</p>
<h1>{title}</h1>
<h2>Book details</h2>
{details}
<h2>Book reviews</h2>
{reviews}
</html>
"""

serve(ProductPage)
