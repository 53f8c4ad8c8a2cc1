"""Public text that is made to look like the private, by models and people's common sense alone.

Nothing private is opened here, and nothing of this package can open it: `make lint` checks what the
package imports, and what that imports in turn.
"""
