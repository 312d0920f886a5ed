"""capitals-info: knows countries and their capitals, and learns new ones. Kept in SQLite.

GET    /capitals             all of them
GET    /capitals/{country}   one
POST   /capitals             {"country": …, "capital": …, "population": …}
DELETE /capitals/{country}   forgets one (the mesh's policy forbids it)
GET    /identity             who is calling, as the mesh proved it

v2 also answers with the capital's population.
"""

import os
import sqlite3
import threading
from urllib.parse import unquote

from server import Handler, Refused, read_json, serve

VERSION = os.environ.get("VERSION", "v1")
# Replicas that share this directory share what they learn.
DATABASE = os.path.join(os.environ.get("DATA_DIR", "."), "capitals.db")
MAX_NAME_CHARACTERS = 80

KNOWN = [
    ("Argentina", "Buenos Aires", 3_121_707),
    ("Australia", "Canberra", 456_692),
    ("Austria", "Vienna", 2_005_760),
    ("Bhutan", "Thimphu", 114_551),
    ("Brazil", "Brasília", 2_817_381),
    ("Canada", "Ottawa", 1_017_449),
    ("Chile", "Santiago", 6_269_384),
    ("Denmark", "Copenhagen", 667_099),
    ("Egypt", "Cairo", 10_203_693),
    ("Ethiopia", "Addis Ababa", 3_945_000),
    ("Finland", "Helsinki", 684_018),
    ("France", "Paris", 2_102_650),
    ("Germany", "Berlin", 3_755_251),
    ("Ghana", "Accra", 284_124),
    ("Greece", "Athens", 643_452),
    ("Iceland", "Reykjavík", 139_875),
    ("India", "New Delhi", 249_998),
    ("Indonesia", "Jakarta", 10_672_100),
    ("Italy", "Rome", 2_754_719),
    ("Japan", "Tokyo", 14_094_034),
    ("Kenya", "Nairobi", 4_397_073),
    ("Mexico", "Mexico City", 9_209_944),
    ("Morocco", "Rabat", 577_827),
    ("Nepal", "Kathmandu", 862_400),
    ("Norway", "Oslo", 717_710),
    ("Peru", "Lima", 10_092_000),
    ("Poland", "Warsaw", 1_863_056),
    ("Portugal", "Lisbon", 567_131),
    ("Spain", "Madrid", 3_332_035),
    ("Sweden", "Stockholm", 984_748),
    ("Switzerland", "Bern", 134_506),
    ("Thailand", "Bangkok", 5_494_932),
    ("Tonga", "Nukuʻalofa", 22_400),
    ("United Kingdom", "London", 8_866_180),
    ("Vietnam", "Hanoi", 8_435_700),
]

_local = threading.local()


def database():
    """This thread's connection."""
    if not hasattr(_local, "connection"):
        _local.connection = sqlite3.connect(DATABASE, timeout=10, isolation_level=None)
    return _local.connection


def prepare():
    """Makes the table; several replicas may do so at once."""
    table = "country TEXT PRIMARY KEY COLLATE NOCASE, capital TEXT NOT NULL, population INTEGER"
    connection = database()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"CREATE TABLE IF NOT EXISTS capitals ({table}) WITHOUT ROWID")
    connection.executemany("INSERT OR IGNORE INTO capitals VALUES (?, ?, ?)", KNOWN)
    connection.execute("COMMIT")


def as_json(row):
    country, capital, population = row
    entry = {"country": country, "capital": capital, "version": VERSION}
    if VERSION != "v1":
        entry["population"] = population
    return entry


def text(value, name):
    if not isinstance(value, str) or not 0 < len(value.strip()) <= MAX_NAME_CHARACTERS:
        raise Refused(400, f"{name} must be a text of 1 to {MAX_NAME_CHARACTERS} characters")
    return value.strip()


def number(value):
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(400, "population must be a whole number")
    return value


class Info(Handler):
    server_version = f"capitals-info/{VERSION}"

    def answer(self, method, path, body):
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match method, parts:
            case "GET", ["capitals"]:
                rows = database().execute("SELECT * FROM capitals ORDER BY country").fetchall()
                self.reply(200, {"capitals": [as_json(row) for row in rows], "version": VERSION})
            case "GET", ["capitals", country]:
                row = database().execute("SELECT * FROM capitals WHERE country = ?", (country,)).fetchone()
                if row is None:
                    raise Refused(404, f"no capital known for {country}")
                self.reply(200, as_json(row))
            case "POST", ["capitals"]:
                self.reply(201, self.learn(read_json(body)))
            case "DELETE", ["capitals", country]:
                database().execute("DELETE FROM capitals WHERE country = ?", (country,))
                self.reply(200, {"forgotten": country})
            case "GET", ["identity"]:
                self.reply(200, {"caller": self.headers.get("x-forwarded-client-cert"), "version": VERSION})
            case "GET", ["healthz"]:
                self.reply(200, {"status": "ok"})
            case _:
                raise Refused(404, f"nothing here: {method} {path}")

    def learn(self, entry):
        row = (text(entry.get("country"), "country"), text(entry.get("capital"), "capital"), number(entry.get("population")))
        database().execute("INSERT OR REPLACE INTO capitals VALUES (?, ?, ?)", row)
        return as_json(row)

    def reply(self, status, value):
        self.send_json(status, value)

    def end_headers(self):
        self.send_header("x-version", VERSION)
        super().end_headers()


if __name__ == "__main__":
    prepare()
    serve(Info)
