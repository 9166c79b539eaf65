-- Statements for the embedded engine (SQLite 3.35+). Times are integers, ms since 1970 UTC; `unixepoch('subsec')`
-- is missing in the SQLite of Debian 12, hence julianday. Writes run between BEGIN IMMEDIATE and COMMIT.

-- name: create_node_tables
CREATE TABLE IF NOT EXISTS queue_head (
    queue_id       INTEGER PRIMARY KEY,
    head           INTEGER NOT NULL,
    low            INTEGER NOT NULL,
    state          TEXT    NOT NULL,
    node_epoch     INTEGER NOT NULL,
    last_stored_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS reader (
    group_id  INTEGER NOT NULL,
    instance  TEXT    NOT NULL,
    queue_id  INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    committed INTEGER NOT NULL,
    rewinds   INTEGER NOT NULL,
    PRIMARY KEY (group_id, instance, queue_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent_batch (
    batch_id      BLOB    NOT NULL PRIMARY KEY,
    queue_id      INTEGER NOT NULL,
    first_offset  INTEGER NOT NULL,
    message_count INTEGER NOT NULL,
    digest        BLOB    NOT NULL,
    stored_at     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sent_batch_stored_at ON sent_batch (stored_at);
CREATE TABLE IF NOT EXISTS queue_gap (
    queue_id    INTEGER NOT NULL,
    from_offset INTEGER NOT NULL,
    to_offset   INTEGER NOT NULL,
    cause       TEXT    NOT NULL,
    PRIMARY KEY (queue_id, from_offset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS delayed_message (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id  INTEGER NOT NULL,
    due_at    INTEGER NOT NULL,
    by_key    INTEGER NOT NULL,
    known_as  TEXT    NULL,
    batch_id  BLOB    NOT NULL,
    position  INTEGER NOT NULL,
    msg_key   TEXT    NULL,
    tag       TEXT    NULL,
    headers   TEXT    NULL,
    body      BLOB    NOT NULL,
    trace_id  TEXT    NULL,
    producer  TEXT    NOT NULL,
    stored_at INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    origin    TEXT    NULL,
    UNIQUE (batch_id, position)
);
CREATE INDEX IF NOT EXISTS delayed_message_due ON delayed_message (queue_id, due_at)

-- name: create_message_table
CREATE TABLE IF NOT EXISTS {table} (
    msg_offset INTEGER PRIMARY KEY,
    msg_key    TEXT    NULL,
    tag        TEXT    NULL,
    headers    TEXT    NULL,
    body       BLOB    NOT NULL,
    trace_id   TEXT    NULL,
    producer   TEXT    NOT NULL,
    stored_at  INTEGER NOT NULL,
    attempt    INTEGER NOT NULL DEFAULT 0,
    origin     TEXT    NULL
)

-- name: select_used
SELECT EXISTS (SELECT 1 FROM {table})
    OR EXISTS (SELECT 1 FROM queue_head WHERE queue_id = :queue AND head > 0)

-- Key indexes (messagestore/topology/key_indexes.py). Their names are unique in the file.

-- name: select_key_index
SELECT 1 FROM sqlite_master WHERE type = 'index' AND tbl_name = :table_name AND name = tbl_name || '_key'

-- name: add_key_index
CREATE INDEX IF NOT EXISTS {table}_key ON {table} (msg_key) WHERE msg_key IS NOT NULL

-- name: drop_key_index
DROP INDEX IF EXISTS {table}_key

-- name: find_key
SELECT msg_offset FROM {table} INDEXED BY {table}_key
 WHERE msg_key = :msg_key AND msg_offset >= :first_offset AND msg_offset < :end_offset
 ORDER BY msg_offset LIMIT :most

-- name: drop_message_table
DROP TABLE IF EXISTS {table}

-- name: insert_head
INSERT OR IGNORE INTO queue_head (queue_id, head, low, state, node_epoch, last_stored_at)
VALUES (:queue, 0, 0, 'rw', :node_epoch, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))

-- name: delete_head
DELETE FROM queue_head WHERE queue_id = :queue

-- name: delete_queue_readers
DELETE FROM reader WHERE queue_id = :queue

-- name: update_queue_state
UPDATE queue_head SET state = :state WHERE queue_id = :queue

-- name: close_heads
UPDATE queue_head SET state = 'ro' WHERE state = 'rw'

-- name: open_heads
UPDATE queue_head SET state = 'rw' WHERE state = 'ro' AND queue_id IN ({queues})

-- name: publish_head
SELECT head, MAX(last_stored_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch

-- name: publish_raise
UPDATE queue_head SET head = head + :message_count, last_stored_at = :stored_at WHERE queue_id = :queue

-- name: publish_batch
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
VALUES (:batch_id, :queue, :first_offset, :message_count, :digest, :stored_at)

-- name: publish_rows
INSERT INTO {table} (msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: select_sent_batch
SELECT queue_id, first_offset, message_count, digest FROM sent_batch WHERE batch_id = :batch_id

-- name: delete_old_batches
DELETE FROM sent_batch WHERE batch_id IN (
    SELECT batch_id FROM sent_batch
     WHERE stored_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :hours * 3600000
     ORDER BY stored_at LIMIT :most)

-- name: select_head
SELECT head, low, state, node_epoch FROM queue_head WHERE queue_id = :queue

-- name: select_heads
SELECT queue_id, head FROM queue_head WHERE queue_id IN ({queues})

-- name: select_all_heads
SELECT queue_id, head FROM queue_head

-- name: select_recent_heads
SELECT queue_id, head FROM queue_head
 WHERE last_stored_at >= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 1000 * :seconds

-- name: select_positions
SELECT h.queue_id, h.head, h.low, r.epoch, r.owner, r.committed
  FROM queue_head h
  LEFT JOIN reader r ON r.queue_id = h.queue_id AND r.group_id = :group_id AND r.instance = :instance
 WHERE h.queue_id IN ({queues})

-- name: select_messages
SELECT msg_offset, msg_key, tag, headers, body, trace_id, stored_at, attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_tagged_messages
SELECT msg_offset, msg_key, tag, IIF(tag IN ({tags}), headers, NULL), IIF(tag IN ({tags}), body, NULL), trace_id,
       stored_at, attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- A header filter is tested by the broker: first without bodies, then with those of the messages it takes.

-- name: select_headers
SELECT msg_offset, tag, headers
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_chosen_messages
SELECT msg_offset, msg_key, tag,
       IIF(msg_offset IN ({offsets}), headers, NULL), IIF(msg_offset IN ({offsets}), body, NULL), trace_id,
       stored_at, attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_closed_heads
SELECT queue_id, state FROM queue_head WHERE state <> 'rw'

-- name: select_gaps
SELECT from_offset, to_offset FROM queue_gap WHERE queue_id = :queue AND to_offset > :position ORDER BY from_offset

-- name: select_stored_at
SELECT stored_at FROM {table} WHERE msg_offset >= :first_offset ORDER BY msg_offset LIMIT 1

-- name: select_producer
SELECT producer FROM {table} WHERE msg_offset = :message_offset

-- name: select_now
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- name: insert_readers
INSERT OR IGNORE INTO reader (group_id, instance, queue_id, epoch, owner, committed, rewinds)
SELECT :group_id, :instance, queue_id, :epoch, '', MIN(MAX(:position, low), head), 0
  FROM queue_head WHERE queue_id IN ({queues})

-- name: delete_readers
DELETE FROM reader WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_instance_readers
DELETE FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_instance
DELETE FROM reader WHERE group_id = :group_id AND instance = :instance

-- name: acquire_reader
UPDATE reader SET epoch = :epoch, owner = :owner
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue
   AND (epoch < :epoch OR (epoch = :epoch AND owner = :owner));
SELECT epoch, owner, committed FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- The row says where the group stood before; :position itself where retention had gone past that, because then the
-- way between was not handled.
-- name: update_committed
SELECT IIF(r.committed < h.low, :position, r.committed)
  FROM reader r JOIN queue_head h ON h.queue_id = r.queue_id
 WHERE r.group_id = :group_id AND r.instance = :instance AND r.queue_id = :queue;
UPDATE reader SET committed = MAX(committed, :position)
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue
   AND epoch = :epoch AND owner = :owner
   AND :position <= (SELECT head FROM queue_head WHERE queue_id = :queue)

-- name: select_committed
SELECT committed FROM reader
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- name: reset_reader
UPDATE reader SET committed = :position, epoch = epoch + 1, owner = '', rewinds = rewinds + 1
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- What verify asks (messagestore/verify). Chunks are short: no statement runs long on a live node.

-- name: count_rows
SELECT COUNT(*), MIN(stored_at), MAX(stored_at), COALESCE(SUM(falls), 0)
  FROM (SELECT stored_at, stored_at < LAG(stored_at) OVER (ORDER BY msg_offset) AS falls
          FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset) chunk

-- name: select_offsets
SELECT msg_offset, stored_at FROM {table}
 WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_ends
SELECT (SELECT MIN(msg_offset) FROM {table} WHERE msg_offset >= :first_offset),
       (SELECT MAX(msg_offset) FROM {table} WHERE msg_offset >= :first_offset)

-- name: select_all_readers
SELECT queue_id, group_id, instance, epoch, owner, committed FROM reader

-- name: select_message_tables
SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'message%'

-- name: select_reader_groups
SELECT DISTINCT group_id FROM reader

-- name: select_readers
SELECT queue_id, group_id, instance, epoch, owner, committed
  FROM reader WHERE group_id = :group_id AND queue_id IN ({queues})

-- name: select_batch_ends
SELECT MAX(batch_id), MIN(stored_at) FROM sent_batch

-- name: select_batch_page
SELECT COUNT(*), MAX(batch_id), COALESCE(SUM(queue_id IN ({queues})), 0) FROM (
    SELECT batch_id, queue_id FROM sent_batch
     WHERE batch_id > :after AND batch_id <= :last ORDER BY batch_id LIMIT :most) page

-- name: select_batches
SELECT batch_id, queue_id, first_offset, message_count, digest, stored_at
  FROM sent_batch
 WHERE batch_id > :after AND batch_id <= :last AND queue_id IN ({queues})
 ORDER BY batch_id

-- What the loss of a node asks (messagestore/vetting, promotion). A file has no replica.

-- name: create_identity
CREATE TABLE IF NOT EXISTS node_identity (
    identity       TEXT    NOT NULL PRIMARY KEY,
    schema_version INTEGER NOT NULL DEFAULT {version},
    min_release    TEXT    NOT NULL DEFAULT ''
)

-- name: write_identity
DELETE FROM node_identity WHERE identity <> :identity;
INSERT OR IGNORE INTO node_identity (identity) VALUES (:identity)

-- name: select_identity
SELECT * FROM node_identity

-- name: select_standing
SELECT * FROM node_identity;
SELECT queue_id, head FROM queue_head

-- name: select_node_epochs
SELECT DISTINCT node_epoch FROM queue_head WHERE state <> 'retired'

-- name: select_highest_committed
SELECT queue_id, MAX(committed) FROM reader GROUP BY queue_id

-- name: select_gaps_of
SELECT queue_id, from_offset, to_offset FROM queue_gap
 WHERE queue_id IN ({queues}) ORDER BY queue_id, from_offset

-- name: raise_head
INSERT INTO queue_gap (queue_id, from_offset, to_offset, cause)
SELECT queue_id, head, :head, :cause FROM queue_head WHERE queue_id = :queue AND head < :head;
UPDATE queue_head SET head = :head WHERE queue_id = :queue AND head < :head

-- name: place_head
UPDATE queue_head SET head = :head, low = :low WHERE queue_id = :queue AND head = 0

-- name: fence_heads
UPDATE queue_head SET node_epoch = :node_epoch, state = CASE state WHEN 'retired' THEN state ELSE 'ro' END

-- name: raise_reader
UPDATE reader SET owner = CASE WHEN epoch < :epoch THEN '' ELSE owner END,
                  epoch = CASE WHEN epoch < :epoch THEN :epoch ELSE epoch END
 WHERE group_id = :group_id AND instance = :instance AND queue_id = :queue

-- Retention (messagestore/retention). Nothing at or above `low` can be deleted.

-- name: raise_low
UPDATE queue_head SET low = :low WHERE queue_id = :queue AND low < :low AND head >= :low

-- name: delete_below
DELETE FROM {table}
 WHERE msg_offset < :end_offset AND msg_offset < (SELECT low FROM queue_head WHERE queue_id = :queue)

-- name: select_row_bytes
SELECT COUNT(*), COALESCE(SUM(LENGTH(body) + COALESCE(LENGTH(headers), 0) + COALESCE(LENGTH(msg_key), 0)
       + COALESCE(LENGTH(tag), 0) + COALESCE(LENGTH(trace_id), 0) + LENGTH(producer)), 0)
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset

-- Changes of node tables (messagestore/engine/schema_steps.py), and what a run of them asks.

-- name: add_schema_version
ALTER TABLE node_identity ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE node_identity ADD COLUMN min_release TEXT NOT NULL DEFAULT ''

-- name: update_schema_version
UPDATE node_identity SET schema_version = :version

-- name: update_min_release
UPDATE node_identity SET min_release = :release

-- name: select_tables_with
SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c
 WHERE t.type = 'table' AND t.name LIKE :tables AND c.name = :column

-- The table, if it exists without the index.
-- name: select_tables_lacking
SELECT name FROM sqlite_master
 WHERE type = 'table' AND name = :table_name
   AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = :index_name)

-- What the file takes, and how much of that deleted rows have left free for new ones.

-- name: select_file_size
SELECT page_count * page_size, freelist_count * page_size
  FROM pragma_page_count(), pragma_page_size(), pragma_freelist_count()

-- Failures (messagestore/retries/failures.py): who may report one, and what is copied. `origin` is read of failure
-- topics only.

-- name: select_fences
SELECT h.queue_id, h.head, h.low, r.epoch, r.owner, r.rewinds,
       CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  FROM queue_head h JOIN reader r ON r.queue_id = h.queue_id
 WHERE r.group_id = :group_id AND r.instance = '' AND h.queue_id IN ({queues})

-- name: select_failing
SELECT msg_offset, msg_key, tag, headers, body, trace_id, stored_at, attempt, origin, producer
  FROM {table} WHERE msg_offset IN ({offsets}) ORDER BY msg_offset

-- name: select_copies
SELECT msg_offset, msg_key, tag, headers, body, trace_id, stored_at, attempt, origin
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset ORDER BY msg_offset

-- name: select_stored_copies
SELECT batch_id, queue_id, stored_at FROM sent_batch WHERE batch_id IN ({batches}) AND queue_id <= 0
 UNION
SELECT batch_id, 0, stored_at FROM delayed_message WHERE batch_id IN ({batches})
 UNION
SELECT batch_id, -1, died_at FROM dead_message WHERE batch_id IN ({batches})

-- Copies of one message (messagestore/inspect/copy_trail.py), by ids that follow from the message.

-- name: select_batch_places
SELECT batch_id, queue_id, first_offset, message_count, stored_at
  FROM sent_batch WHERE batch_id IN ({batches})

-- name: select_waiting_copies
SELECT batch_id, id, due_at, attempt, origin
  FROM delayed_message WHERE batch_id IN ({batches})

-- name: select_dead_copies
SELECT id, group_id, topic_id, died_at, attempts, error_class, error,
       origin, msg_key, tag, trace_id, LENGTH(body), batch_id
  FROM dead_message WHERE group_id = :group_id AND batch_id IN ({batches})

-- name: count_waiting
SELECT queue_id, COUNT(*) FROM delayed_message WHERE queue_id IN ({queues}) GROUP BY queue_id

-- name: list_waiting
SELECT id, queue_id, due_at, attempt, origin, msg_key, tag, LENGTH(body)
  FROM delayed_message WHERE queue_id IN ({queues}) ORDER BY due_at, id LIMIT :most

-- Dead messages (messagestore/retries/dead_letters.py). What is remembered of one in `sent_batch` has the queue -1. An INSERT
-- whose queue is closed, missing or of another node epoch stores nothing.

-- name: create_dead_table
CREATE TABLE IF NOT EXISTS dead_message (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    batch_id    BLOB    NOT NULL UNIQUE,
    group_id    INTEGER NOT NULL,
    topic_id    INTEGER NOT NULL,
    died_at     INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    error_class TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    origin      TEXT    NOT NULL,
    msg_key     TEXT    NULL,
    tag         TEXT    NULL,
    headers     TEXT    NULL,
    body        BLOB    NOT NULL,
    trace_id    TEXT    NULL,
    producer    TEXT    NOT NULL
);
CREATE INDEX IF NOT EXISTS dead_message_group ON dead_message (group_id, died_at);
CREATE INDEX IF NOT EXISTS dead_message_topic ON dead_message (group_id, topic_id, died_at);
CREATE INDEX IF NOT EXISTS dead_message_error ON dead_message (group_id, error_class, died_at);
CREATE INDEX IF NOT EXISTS dead_message_both ON dead_message (group_id, topic_id, error_class, died_at);
CREATE INDEX IF NOT EXISTS dead_message_key ON dead_message (group_id, msg_key, died_at)

-- name: add_dead_key_index
CREATE INDEX dead_message_key ON dead_message (group_id, msg_key, died_at)

-- name: insert_dead
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
SELECT :batch_id, -1, 0, 1, :batch_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch;
INSERT INTO dead_message (batch_id, group_id, topic_id, died_at, attempts, error_class, error, origin,
                          msg_key, tag, headers, body, trace_id, producer)
SELECT :batch_id, :group_id, :topic_id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
       :attempts, :error_class, :error, :origin, :msg_key, :tag, :headers, :body, :trace_id, :producer
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch

-- name: list_dead
SELECT id, group_id, topic_id, died_at, attempts, error_class, error, origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message INDEXED BY {by}
 WHERE {where} AND died_at <= :until_ms AND (died_at < :until_ms OR id < :below)
 ORDER BY died_at DESC, id DESC LIMIT :most

-- A search reads a bounded stretch of the dead letters that an index selects, newest first.
-- name: find_dead_stretch
SELECT id, died_at FROM dead_message INDEXED BY {by}
 WHERE {where} AND died_at <= :until_ms AND (died_at < :until_ms OR id < :below)
 ORDER BY died_at DESC, id DESC LIMIT 1 OFFSET :skipped

-- name: search_dead
SELECT id, group_id, topic_id, died_at, attempts, error_class, error, origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message INDEXED BY {by}
 WHERE {where} AND died_at <= :until_ms AND (died_at < :until_ms OR id < :below)
   AND died_at >= :from_ms AND (died_at > :from_ms OR id >= :from_id) AND msg_key = :msg_key
 ORDER BY died_at DESC, id DESC LIMIT :most

-- name: search_dead_origin
SELECT id, group_id, topic_id, died_at, attempts, error_class, error, origin, msg_key, tag, trace_id, LENGTH(body)
  FROM dead_message INDEXED BY {by}
 WHERE {where} AND died_at <= :until_ms AND (died_at < :until_ms OR id < :below)
   AND died_at >= :from_ms AND (died_at > :from_ms OR id >= :from_id) AND SUBSTR(origin, 1, LENGTH(:origin)) = :origin
 ORDER BY died_at DESC, id DESC LIMIT :most

-- name: summarize_dead
SELECT topic_id, error_class, COUNT(*), MIN(died_at), MAX(died_at)
  FROM dead_message INDEXED BY dead_message_both WHERE {where} GROUP BY topic_id, error_class

-- name: tally_dead
SELECT group_id, COUNT(*),
       SUM(died_at >= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :within_s * 1000), MAX(died_at)
  FROM dead_message INDEXED BY dead_message_group GROUP BY group_id

-- name: select_dead
SELECT id, group_id, topic_id, died_at, attempts, error_class, error, origin, msg_key, tag, trace_id,
       LENGTH(body), headers, body, batch_id
  FROM dead_message WHERE group_id = :group_id AND id IN ({ids}) ORDER BY id

-- name: select_dead_places
SELECT id, died_at FROM dead_message INDEXED BY {by}
 WHERE {where} AND id <= :upto AND died_at >= :from_ms AND (died_at > :from_ms OR id > :after)
 ORDER BY died_at, id LIMIT :most

-- name: select_newest_dead
SELECT COALESCE(MAX(id), 0) FROM dead_message

-- name: count_dead
SELECT COUNT(*) FROM dead_message WHERE {where} AND id <= :upto

-- name: delete_dead
DELETE FROM dead_message WHERE group_id = :group_id AND id IN ({ids})

-- name: select_dead_pairs
SELECT DISTINCT group_id, topic_id FROM dead_message

-- name: delete_old_dead
DELETE FROM dead_message WHERE id IN (
    SELECT id FROM dead_message
     WHERE group_id = :group_id AND topic_id = :topic_id
       AND died_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :days * 86400000
     ORDER BY died_at LIMIT :most)

-- Look-ups (messagestore/inspect/search.py), in short ranges of offsets.

-- name: search_messages
SELECT msg_offset, msg_key, tag, headers, body, trace_id, stored_at, attempt
  FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset
   AND (:msg_key IS NULL OR msg_key = :msg_key) AND (:tag IS NULL OR tag = :tag)
   AND (:trace_id IS NULL OR trace_id = :trace_id) AND (:body_part IS NULL OR INSTR(body, :body_part) > 0)
   AND (:header_first IS NULL OR INSTR(headers, :header_first) = 1 OR INSTR(headers, :header_later) > 0)
 {only} ORDER BY msg_offset LIMIT :most

-- The last messages of a queue without bodies, for a filter that is tried (messagestore/inspect/tag_preview.py).

-- name: select_latest_headers
SELECT tag, headers FROM {table} WHERE msg_offset >= :first_offset AND msg_offset < :end_offset
 ORDER BY msg_offset DESC LIMIT :most

-- Delayed messages (messagestore/produce/delayed_store.py). In `sent_batch` a batch of them has no queue (0), and its first row
-- instead of an offset.

-- name: delay_head
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch

-- name: delay_rows
INSERT INTO delayed_message (queue_id, due_at, by_key, known_as, batch_id, position, msg_key, tag, headers, body,
                             trace_id, producer, stored_at, attempt, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delay_batch
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
VALUES (:batch_id, 0, (SELECT MIN(id) FROM delayed_message WHERE batch_id = :batch_id), :message_count, :digest,
        :stored_at)

-- What is remembered of a batch, or, when that was trimmed, what its rows that still wait say.
-- name: select_delayed_batch
SELECT first_offset, digest, stored_at FROM sent_batch WHERE batch_id = :batch_id AND queue_id = 0
 UNION ALL
SELECT MIN(id - position), NULL, MIN(stored_at)
  FROM delayed_message WHERE batch_id = :batch_id HAVING COUNT(*) > 0

-- Delayed messages that are due (messagestore/produce/delayed_delivery.py). The first reads two index entries for each queue.

-- name: select_delayed_queues
WITH RECURSIVE waiting (queue_id) AS (
    SELECT MIN(queue_id) FROM delayed_message
     UNION ALL
    SELECT (SELECT MIN(d.queue_id) FROM delayed_message d WHERE d.queue_id > waiting.queue_id)
      FROM waiting WHERE waiting.queue_id IS NOT NULL)
SELECT queue_id, (SELECT MIN(d.due_at) FROM delayed_message d WHERE d.queue_id = waiting.queue_id)
                 - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  FROM waiting WHERE queue_id IS NOT NULL

-- name: select_due
SELECT id, by_key, msg_key, LENGTH(body) + COALESCE(LENGTH(headers), 0)
  FROM delayed_message
 WHERE queue_id = :queue AND due_at <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 ORDER BY due_at, id LIMIT :most

-- name: lock_head
SELECT head, MAX(last_stored_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
  FROM queue_head WHERE queue_id = :queue AND state = 'rw' AND node_epoch = :node_epoch

-- name: move_rows
INSERT INTO {table} (msg_offset, msg_key, tag, headers, body, trace_id, producer, stored_at, attempt, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: delete_delayed
DELETE FROM delayed_message WHERE id IN ({rows})

-- name: retarget_delayed
UPDATE delayed_message SET queue_id = :target WHERE id = :row AND queue_id = :queue

-- What became of a row that left otherwise: no queue (0), and whether a message was made of it (1) or not (0).
-- name: leave_delayed
DELETE FROM delayed_message
 WHERE id = :row AND queue_id = :queue
   AND (:also_due OR due_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
INSERT INTO sent_batch (batch_id, queue_id, first_offset, message_count, digest, stored_at)
SELECT :batch_id, 0, :queue, :message_count, :digest, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 WHERE changes() = 1

-- name: select_delayed
SELECT id, queue_id, due_at, by_key, known_as, msg_key, tag, headers, body, trace_id, producer, stored_at, attempt,
       origin
  FROM delayed_message WHERE id IN ({rows}) ORDER BY id

-- name: select_delayed_ids
SELECT id, LENGTH(body) FROM delayed_message WHERE queue_id = :queue AND id > :after ORDER BY id LIMIT :most

-- Where every group stands, for /metrics: the readers first, so that none is above the head that is read with it.
-- name: select_figures
SELECT group_id, instance, queue_id, committed FROM reader;
SELECT queue_id, head, low FROM queue_head;
SELECT queue_id, from_offset, to_offset FROM queue_gap ORDER BY queue_id, from_offset;
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- What a backup is marked with (messagestore/nodes/backup_marks.py): readers first, so that none is above its head.
-- name: select_mark
SELECT group_id, instance, queue_id, epoch, committed FROM reader ORDER BY queue_id, group_id, instance;
SELECT queue_id, head, low, node_epoch FROM queue_head ORDER BY queue_id;
SELECT queue_id, from_offset, to_offset FROM queue_gap ORDER BY queue_id, from_offset;
SELECT (SELECT COALESCE(MAX(queue_id), 0) FROM queue_head),
       (SELECT COALESCE(MAX(group_id), 0) FROM reader),
       (SELECT COALESCE(MAX(group_id), 0) FROM dead_message),
       (SELECT COALESCE(MAX(topic_id), 0) FROM dead_message),
       (SELECT COALESCE(MAX(CAST(instance AS INTEGER)), 0) FROM reader WHERE instance <> '')

-- name: count_delayed_of_queues
SELECT queue_id, COUNT(*) FROM delayed_message GROUP BY queue_id

-- name: count_delayed
SELECT COUNT(*) FROM (SELECT 1 FROM delayed_message WHERE queue_id IN ({queues}) LIMIT :most) waiting

-- How many delayed messages there ever were, by the counter of their ids, and how many of them wait.
-- name: select_delayed_counts
SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'delayed_message'), 0);
SELECT COUNT(*) FROM (SELECT 1 FROM delayed_message LIMIT :most) waiting

-- name: raise_delayed_ids
DELETE FROM sqlite_sequence WHERE name = 'delayed_message' AND seq < :next_id - 1;
INSERT INTO sqlite_sequence (name, seq)
SELECT 'delayed_message', :next_id - 1
 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'delayed_message')

-- name: delete_queue_delayed
DELETE FROM delayed_message
 WHERE id IN (SELECT id FROM delayed_message WHERE queue_id = :queue LIMIT :most)

-- name: retarget_queue_delayed
UPDATE delayed_message SET queue_id = :target
 WHERE id IN (SELECT id FROM delayed_message WHERE queue_id = :queue LIMIT :most)

-- What an examination tries on a table of its own: see tables.try_rights.

-- name: try_insert
INSERT INTO {table} (msg_offset, body, producer, stored_at) VALUES (0, '', '', 0)

-- name: try_select
SELECT msg_offset FROM {table}

-- name: try_update
UPDATE {table} SET attempt = 1 WHERE msg_offset = 0

-- name: try_delete
DELETE FROM {table} WHERE msg_offset = 0

-- Share groups (messagestore/shares): how far a queue was leased, and the leases. The bits of `done` say which
-- offsets have left a run.

-- name: create_share_tables
CREATE TABLE IF NOT EXISTS share_position (
    group_id    INTEGER NOT NULL,
    queue_id    INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (group_id, queue_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS share_run (
    group_id     INTEGER NOT NULL,
    queue_id     INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    end_offset   INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    grant_no     INTEGER NOT NULL,
    owner        TEXT    NOT NULL,
    lease_until  INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    done         BLOB    NULL,
    PRIMARY KEY (group_id, queue_id, first_offset, end_offset)
) WITHOUT ROWID

-- name: select_share_views
SELECT h.queue_id, h.head, h.low, r.epoch, r.committed, p.epoch, p.next_offset
  FROM queue_head h
  JOIN reader r ON r.queue_id = h.queue_id AND r.group_id = :group_id AND r.instance = ''
  LEFT JOIN share_position p ON p.queue_id = h.queue_id AND p.group_id = :group_id
 WHERE h.queue_id IN ({queues});
SELECT queue_id, COUNT(*), (MIN(lease_until)
       - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) * 1000
  FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues}) GROUP BY queue_id

-- The position before the runs: who takes holds its lock, so no run of an older epoch comes after it is gone.
-- name: start_share
DELETE FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue
   AND epoch < (SELECT epoch FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue);
INSERT OR IGNORE INTO share_position (group_id, queue_id, epoch, next_offset)
SELECT group_id, queue_id, epoch, committed
  FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue;
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue
   AND epoch < (SELECT epoch FROM reader WHERE group_id = :group_id AND instance = '' AND queue_id = :queue)

-- name: lock_position
SELECT epoch, next_offset FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue

-- name: take_run
INSERT INTO share_run (group_id, queue_id, first_offset, end_offset, epoch, grant_no, owner, lease_until, deliveries)
SELECT group_id, queue_id, MAX(next_offset, :from_offset),
       MIN(MAX(next_offset, :from_offset) + :messages, :end_offset), epoch, 1, :owner,
       CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :lease_us / 1000, :deliveries
  FROM share_position
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch
   AND MAX(next_offset, :from_offset) < :end_offset;
UPDATE share_position SET next_offset = MIN(MAX(next_offset, :from_offset) + :messages, :end_offset)
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch
   AND MAX(next_offset, :from_offset) < :end_offset

-- name: select_due_runs
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch
   AND lease_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
   AND (deliveries >= :limit_at AND end_offset = first_offset + 1) = :at_limit
 ORDER BY first_offset, end_offset LIMIT :most

-- name: select_over_runs
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND epoch = :epoch AND first_offset < :below
   AND lease_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 ORDER BY first_offset, end_offset LIMIT :most

-- name: take_over_run
UPDATE share_run SET grant_no = grant_no + 1, owner = :owner, deliveries = deliveries + :counted,
                     lease_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :lease_us / 1000
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done IS :seen
   AND lease_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- name: select_shares
SELECT first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset IN ({offsets})

-- name: mark_run
UPDATE share_run SET done = :done
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done IS :seen

-- name: delete_run
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done IS :seen

-- name: finish_run
DELETE FROM share_run
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no

-- It follows the statement that made the offsets leave another run, or another of these.
-- name: add_run
INSERT INTO share_run (group_id, queue_id, first_offset, end_offset, epoch, grant_no, owner, lease_until, deliveries)
SELECT :group_id, :queue, :first_offset, :end_offset, :epoch, :grant_no, :owner,
       CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :lease_us / 1000, :deliveries WHERE changes() = 1

-- name: release_run
UPDATE share_run SET grant_no = grant_no + 1, owner = '',
                     lease_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND done IS :seen

-- name: renew_run
UPDATE share_run SET owner = :owner,
                     lease_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :lease_us / 1000
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no

-- name: count_run
UPDATE share_run SET deliveries = :deliveries
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset AND end_offset = :end_offset
   AND epoch = :epoch AND grant_no = :grant_no AND deliveries BETWEEN :delivery - 1 AND :delivery

-- name: free_runs_of
UPDATE share_run SET owner = '', lease_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 WHERE group_id = :group_id AND owner = :owner

-- name: end_leases
UPDATE share_run SET owner = '', lease_until = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
 WHERE group_id = :group_id AND queue_id = :queue AND first_offset = :first_offset
   AND lease_until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- name: select_held_runs
SELECT queue_id, first_offset, end_offset, epoch, grant_no, owner, deliveries, done FROM share_run
 WHERE group_id = :group_id AND queue_id IN ({queues}) AND owner = :owner ORDER BY queue_id, first_offset
 LIMIT :most

-- One statement, so that a run and the position that moved behind it are seen together or not at all.
-- name: select_floor
SELECT p.epoch, p.next_offset, r.first_offset, r.end_offset, r.done
  FROM share_position p
  LEFT JOIN share_run r ON r.group_id = p.group_id AND r.queue_id = p.queue_id AND r.epoch = p.epoch
 WHERE p.group_id = :group_id AND p.queue_id = :queue ORDER BY r.first_offset, r.end_offset LIMIT :most

-- name: select_queue_shares
SELECT p.group_id, p.epoch, p.next_offset, r.first_offset, r.end_offset, r.epoch, r.grant_no, r.owner, r.deliveries,
       r.done
  FROM share_position p
  LEFT JOIN share_run r ON r.group_id = p.group_id AND r.queue_id = p.queue_id AND r.epoch = p.epoch
 WHERE p.queue_id = :queue

-- name: raise_committed
UPDATE reader SET committed = :position
 WHERE group_id = :group_id AND instance = '' AND queue_id = :queue AND epoch = :epoch AND committed < :position

-- name: select_share_runs
SELECT queue_id, first_offset, end_offset, epoch, grant_no, owner, deliveries, done,
       (lease_until - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) * 1000
  FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues})
 ORDER BY queue_id, first_offset, end_offset LIMIT :most

-- What share groups have yet to finish, of all queues (messagestore/inspect/node_counts.py).
-- name: select_leased
SELECT p.group_id, p.queue_id, p.next_offset
  FROM share_position p
  JOIN reader a ON a.group_id = p.group_id AND a.queue_id = p.queue_id AND a.epoch = p.epoch;
SELECT r.group_id, r.queue_id, r.end_offset - r.first_offset, r.done
  FROM share_run r
  JOIN share_position p ON p.group_id = r.group_id AND p.queue_id = r.queue_id AND p.epoch = r.epoch

-- name: delete_shares
DELETE FROM share_position WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below;
DELETE FROM share_run WHERE group_id = :group_id AND queue_id IN ({queues}) AND epoch < :below

-- name: delete_queue_shares
DELETE FROM share_position WHERE queue_id = :queue;
DELETE FROM share_run WHERE queue_id = :queue
