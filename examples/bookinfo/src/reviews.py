"""reviews: what readers say of a book; versions with STARS ask ratings for theirs.

GET /reviews/{id}
"""

import os

from server import Handler, call, serve

STARS = os.environ.get("STARS")
VERSION = os.environ.get("VERSION", "v1")
TEXTS = {
    "Reviewer1": "An extremely entertaining play by Shakespeare. The slapstick humour is refreshing!",
    "Reviewer2": "Absolutely fun and entertaining. The play lacks thematic depth when compared to other plays by Shakespeare.",
}


class Reviews(Handler):
    def answer(self, path):
        kind, _, book = path.strip("/").partition("/")
        if kind != "reviews" or not book.isdigit():
            return self.send_json(404, {"error": "try /reviews/0"})
        reviews = [{"reviewer": reviewer, "text": text} for reviewer, text in TEXTS.items()]
        if STARS:
            self.rate(book, reviews)
        self.send_json(200, {"id": book, "podname": os.environ.get("HOSTNAME", ""), "version": VERSION, "reviews": reviews})

    def rate(self, book, reviews):
        status, ratings = call("ratings", f"/ratings/{book}", self.passed_on())
        for review in reviews:
            if status == 200:
                review["rating"] = {"stars": ratings["ratings"].get(review["reviewer"], 0), "color": STARS}
            else:
                review["rating"] = {"error": "Ratings service is currently unavailable"}


serve(Reviews)
