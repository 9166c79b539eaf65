"""The shapes of hot requests and answers: typed structs, the same names in JSON and MessagePack.

Requests refuse fields they do not know and values of another type. Bytes are `body_bytes` in
MessagePack and `body_base64` in JSON, which also has `body` for text; exactly one is given.
"""
