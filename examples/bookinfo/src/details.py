"""details: what is known of a book.

GET /details/{id}
"""

from server import Handler, serve

BOOK = {
    "author": "William Shakespeare",
    "year": 1595,
    "type": "paperback",
    "pages": 200,
    "publisher": "PublisherA",
    "language": "English",
}


class Details(Handler):
    def answer(self, path):
        kind, _, book = path.strip("/").partition("/")
        if kind == "details" and book.isdigit():
            self.send_json(200, {"id": int(book), **BOOK})
        else:
            self.send_json(404, {"error": "try /details/0"})


serve(Details)
