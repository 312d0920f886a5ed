"""ratings: a book's stars.

GET /ratings/{id}
"""

from server import Handler, serve


class Ratings(Handler):
    def answer(self, path):
        kind, _, book = path.strip("/").partition("/")
        if kind == "ratings" and book.isdigit():
            self.send_json(200, {"id": int(book), "ratings": {"Reviewer1": 5, "Reviewer2": 4}})
        else:
            self.send_json(404, {"error": "try /ratings/0"})


serve(Ratings)
